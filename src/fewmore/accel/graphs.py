"""Capture a step of training as a CUDA graph.

A small network's step is a few hundred small kernels, and launching them one by one takes longer
than running them. A graph launches all of them at once.
"""

import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Generator, Tensor

from fewmore.errors import MethodError

PRIORITY = -1  # of a step's own kernels: before those on side streams
WARM_UP_STEPS = 3  # before a capture, so that libraries have chosen their kernels

Step = Callable[[Tensor], None]

_THREAD = threading.local()


def capture(step: Step, example: Tensor, state: Sequence[Tensor], generator: Generator) -> Step:
    """Capture a step, and return one that replays it. All of `state` is left as it was."""
    row = example.clone()
    before = [tensor.clone() for tensor in state]
    stream = _stream(example.device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            step(row)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    try:
        # The default error mode would forbid other threads to allocate memory meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step(row)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise refusal(error) from error
    # The warm-up steps have trained: everything is put back as it was.
    with torch.no_grad():
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)

    def replay(next_row: Tensor) -> None:
        row.copy_(next_row)
        graph.replay()

    return replay


def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which this thread captures.

    PyTorch has few streams, and gives each again after the last. Graphs that were captured on one
    share memory of libraries such as cuBLAS, and must not be replayed by several threads at once.
    """
    streams: dict[torch.device, torch.cuda.Stream] = _THREAD.__dict__.setdefault("streams", {})
    if device not in streams:
        made = torch.cuda.Stream(device, priority=PRIORITY)  # type: ignore[no-untyped-call]
        streams[device] = made
    return streams[device]


def refusal(error: RuntimeError) -> MethodError:
    """Return the sentence for a step that cannot be captured, with the line that stopped it."""
    # The end of a capture that was stopped fails too; the first error is the one to report.
    first = error.__context__ or error
    reason = str(first).strip().partition("\n")[0]
    library = str(Path(torch.__file__).parent)
    frames = [f for f in traceback.extract_tb(first.__traceback__) if library not in f.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return MethodError(
        f"a step of training cannot be captured as a CUDA graph: {reason}{place}; docs/training.md "
        "says what a loss must not do, and --no-accel trains without graphs"
    )
