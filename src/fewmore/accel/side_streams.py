"""Compute gradients of weights on side streams, beside the backward pass.

On a GPU a small network's backward pass is a chain of small kernels, one after the other. The
gradients of the weights are no links of that chain: each is made from a layer's input and the
gradient of its output, and is needed only when the pass is over. So they go to side streams, and
reach their parameters where the streams meet again. Nor are the casts of weights to half precision
links of it: they are made all at once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import torch
from torch import Tensor, nn

STREAMS = 2  # a third one brings nothing


class SideStreams:
    """Hold streams beside a step's own, the gradients under way on them, and casts of weights."""

    def __init__(self, device: torch.device) -> None:
        make_stream = partial(torch.cuda.Stream, device)
        self._streams = cycle([make_stream() for _ in range(STREAMS)])
        self._used: set[torch.cuda.Stream] = set()
        self._pending: list[tuple[nn.Parameter, Tensor]] = []
        self._reads: list[Tensor] = []
        self._casts: dict[nn.Parameter, Tensor] = {}

    @contextmanager
    def receive(self) -> Iterator[None]:
        """Receive the gradients of layers that are called within, until they are joined."""
        self._refresh_casts()
        _THREAD.side_streams = self
        try:
            yield
        finally:
            _THREAD.side_streams = None

    def _refresh_casts(self) -> None:
        """Cast all weights that were cast in the step before, by one kernel."""
        if self._casts:
            with torch.no_grad():
                torch._foreach_copy_(list(self._casts.values()), list(self._casts))

    def cast(self, weight: nn.Parameter, dtype: torch.dtype) -> Tensor:
        """Return a weight in a layer's precision, detached."""
        if weight.dtype == dtype:
            return weight.detach()
        if weight not in self._casts:
            self._casts[weight] = weight.detach().to(dtype)
        return self._casts[weight]

    def submit(
        self,
        parameters: Sequence[nn.Parameter],
        gradients: Callable[[], Sequence[Tensor]],
        reads: Sequence[Tensor],
    ) -> None:
        """Compute gradients on the next stream; `reads` are the tensors that this takes.

        They are held until the streams meet: autograd adds to a gradient in place where nobody else
        holds it, and its memory would be used again.
        """
        stream = next(self._streams)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._pending += zip(parameters, gradients(), strict=True)
        self._reads += reads
        self._used.add(stream)

    def join(self) -> None:
        """Make the current stream wait for all gradients, and hand them to their parameters."""
        for stream in self._used:
            torch.cuda.current_stream().wait_stream(stream)
        for parameter, gradient in self._pending:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self._used.clear()
        self._pending.clear()
        self._reads.clear()


_THREAD = threading.local()


def current_side_streams() -> SideStreams | None:
    """Return where a layer that is called now sends its weights' gradients.

    It is asked in the forward pass, as the backward pass runs in threads of its own.
    """
    return getattr(_THREAD, "side_streams", None)
