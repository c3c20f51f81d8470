"""Average the weights of a network over the steps of its training."""

from collections.abc import Mapping

import torch
from torch import Tensor


class WeightAverage:
    """Keep an exponential moving average of tensors, updated within each step.

    After a step, the tensors count `decay` times as much as those after the next one, and the
    weights of all steps sum to 1. What the tensors were before the first step does not count, so a
    short training is averaged as well as a long one. Tensors that are not floating-point, such as
    counters, are left out.

    All of it is on the device, so that it can be part of a captured step.
    """

    def __init__(self, tensors: Mapping[str, Tensor], decay: float, device: torch.device) -> None:
        self.decay = decay
        self.sources = {
            name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()
        }
        self.averages = {name: tensor.clone() for name, tensor in self.sources.items()}
        # The sum of the weights of all steps, where that of the latest is 1.
        self.total = torch.zeros((), device=device)

    @torch.no_grad()
    def update(self) -> None:
        """Add the tensors as they are now."""
        self.total.mul_(self.decay).add_(1)
        averages = list(self.averages.values())
        changes = torch._foreach_sub(list(self.sources.values()), averages)
        torch._foreach_div_(changes, self.total)
        torch._foreach_add_(averages, changes)

    @torch.no_grad()
    def finish(self) -> None:
        """Give the tensors the values of their averages."""
        for name, tensor in self.sources.items():
            tensor.copy_(self.averages[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that an update changes, by name."""
        return {**self.averages, "total": self.total}
