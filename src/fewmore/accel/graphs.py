"""Capture a step of training as a CUDA graph.

A small network's step is a few hundred small kernels, and launching them one by one takes longer
than running them. A graph launches all of them at once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

PRIORITY = -1  # of a step's own kernels: before those on side streams
WARM_UP_STEPS = 3  # before a capture, so that libraries have chosen their kernels

Step = Callable[[Tensor], None]


def capture(step: Step, example: Tensor, state: Sequence[Tensor], generator: Generator) -> Step:
    """Capture a step, and return one that replays it. All of `state` is left as it was."""
    row = example.clone()
    before = [tensor.clone() for tensor in state]
    stream = torch.cuda.Stream(priority=PRIORITY)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            step(row)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    # The default error mode would forbid other threads to allocate memory meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step(row)
    # The warm-up steps have trained: everything is put back as it was.
    with torch.no_grad():
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)

    def replay(next_row: Tensor) -> None:
        row.copy_(next_row)
        graph.replay()

    return replay
