"""SGD with momentum, one fused kernel a group of parameters.

PyTorch's optimiser classes import its compiler as soon as one is made, which takes longer than importing PyTorch itself. The function
beneath them does not.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim.sgd import sgd


class SGD:
    """Rates are tensors, so that a captured step sees them change; momenta exist from the start."""

    def __init__(
        self,
        groups: Sequence[Sequence[nn.Parameter]],
        device: torch.device,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
    ) -> None:
        self.groups = [list(parameters) for parameters in groups]
        self.rates = [torch.zeros((), device=device) for _ in groups]
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self.momenta = {
            p: torch.zeros_like(p) for parameters in self.groups for p in parameters if momentum
        }

    def zero_grad(self) -> None:
        for parameters in self.groups:
            for parameter in parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters that have a gradient."""
        for parameters, rate in zip(self.groups, self.rates, strict=True):
            moved = [p for p in parameters if p.grad is not None]
            gradients = [p.grad for p in moved]
            momenta = [self.momenta.get(p) for p in moved]
            sgd(
                list(moved), gradients, momenta, fused=True, lr=rate, momentum=self.momentum, nesterov=self.nesterov,  # type: ignore[arg-type]
                weight_decay=self.weight_decay, dampening=0.0, maximize=False,
            )  # fmt: skip
