"""What a step of training can do beside its chain of layers.

On a GPU a small network's step is a chain of small kernels, one after the other. The gradients of the weights are no links of that
chain: each is made from what a layer kept and from the gradient that passed it, and is needed when the pass is over. So they go to
other streams, and reach their parameters where the streams meet again. Nor are the weights in half precision that layers ask for:
they are made all at once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

import torch
from torch import Tensor, nn

STREAMS = 2  # a third one brings nothing


class SideStreams:
    """Streams beside the one of a step, the gradients that are under way on them, and weights in half precision."""

    def __init__(self, device: torch.device) -> None:
        self._streams = cycle([torch.cuda.Stream(device) for _ in range(STREAMS)])  # type: ignore[no-untyped-call]
        self._used: set[torch.cuda.Stream] = set()
        self._pending: list[tuple[nn.Parameter, Tensor]] = []
        self._casts: dict[nn.Parameter, Tensor] = {}

    def begin(self) -> None:
        """Before a step's first layer: cast all weights that were asked for in the step before, by one kernel."""
        if self._casts:
            with torch.no_grad():
                torch._foreach_copy_(list(self._casts.values()), list(self._casts))

    def cast(self, weight: nn.Parameter, dtype: torch.dtype) -> Tensor:
        """A weight in a layer's precision, without a way back for gradients."""
        if weight.dtype == dtype:
            return weight.detach()
        if weight not in self._casts:
            self._casts[weight] = weight.detach().to(dtype)
        return self._casts[weight]

    def give(
        self,
        parameters: Sequence[nn.Parameter],
        gradients: Callable[[], Sequence[Tensor]],
        reads: Sequence[Tensor],
    ) -> None:
        """Compute the gradients of some parameters; `reads` are the tensors that this takes."""
        stream = next(self._streams)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._pending += zip(parameters, gradients(), strict=True)
        for tensor in reads:
            tensor.record_stream(stream)
        self._used.add(stream)

    def join(self) -> None:
        """Wait, on the current stream, for all gradients, and hand them to their parameters."""
        for stream in self._used:
            torch.cuda.current_stream().wait_stream(stream)
        for parameter, gradient in self._pending:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self._used.clear()
        self._pending.clear()


_THREAD = threading.local()


@contextmanager
def gradients_on(aside: SideStreams | None) -> Iterator[None]:
    """Layers that are called within send their weights' gradients there, to be joined after the backward pass; None: nowhere."""
    if aside is not None:
        aside.begin()
    _THREAD.aside = aside
    try:
        yield
    finally:
        _THREAD.aside = None


def current_side_streams() -> SideStreams | None:
    """Where a layer that is called now sends its weights' gradients; asked in the forward pass, as the backward one has its own threads."""
    return getattr(_THREAD, "aside", None)
