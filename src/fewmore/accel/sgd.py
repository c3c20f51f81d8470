"""Take SGD steps without importing PyTorch's compiler.

The classes of torch.optim import it at their first step, which takes longer than importing PyTorch
itself. The function beneath them does not.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd


class LightSGD:
    """Do what torch.optim.SGD(fused=True) does, as far as the training loop uses it."""

    def __init__(
        self,
        params: Sequence[dict[str, Any]],
        momentum: float,
        nesterov: bool,
        weight_decay: float,
        fused: bool,
    ) -> None:
        self.param_groups = list(params)
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.options = {
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "fused": fused,
        }
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters that have a gradient."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            sgd(
                moved,
                [p.grad for p in moved],
                [self.state[p].get("momentum_buffer") for p in moved],
                lr=group["lr"],
                dampening=0.0,
                maximize=False,
                **self.options,  # type: ignore[arg-type]
            )
