"""Configure and build SGD with momentum and a learning rate that falls at milestones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fewmore.errors import ConfigError


@dataclass(frozen=True)
class SGDConfig:
    """Hold the settings of SGD; at each milestone, a round, the rate is multiplied by `decay`."""

    lr: float = 0.1  # the learning rate
    momentum: float = 0.9  # of SGD
    nesterov: bool = True  # look ahead by the momentum
    weight_decay: float = 5e-4  # added to the gradient, times the weights
    milestones: tuple[int, ...] = ()  # rounds at which the rate falls
    decay: float = 0.1  # factor of the rate at each milestone

    def __post_init__(self) -> None:
        wrong = []
        if not (math.isfinite(self.lr) and self.lr >= 0):
            wrong.append(f"lr must be a number of at least 0, not {self.lr}")
        if not 0 <= self.momentum < 1:
            wrong.append(f"momentum must lie in [0, 1), not {self.momentum}")
        if self.nesterov and self.momentum == 0:
            wrong.append("nesterov needs a momentum above 0")
        if self.weight_decay < 0:
            wrong.append(f"weight_decay must not be negative, and is {self.weight_decay}")
        if wrong:
            raise ConfigError("optimizer: " + "; ".join(wrong))

    def lr_factor(self, round_: int) -> float:
        """Return the factor of the learning rate in a round."""
        return self.decay ** sum(round_ >= m for m in self.milestones)


@dataclass(frozen=True)
class EpochsConfig(SGDConfig):
    """Hold the settings of training in epochs, which are its rounds."""

    epochs: int = 100  # passes over the images
    batch: int = 128  # images a step

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (("epochs", self.epochs), ("batch", self.batch))
        wrong = [f"{name} must be at least 1, not {value}" for name, value in sizes if value < 1]
        if wrong:
            raise ConfigError("; ".join(wrong))


@dataclass
class ParameterGroup:
    """Hold parameters that are trained at the same learning rate."""

    parameters: Sequence[nn.Parameter]
    lr: float | None = None  # None: the config's


def build_sgd(
    groups: Sequence[ParameterGroup],
    config: SGDConfig,
    device: torch.device,
    optimizer_class: type = torch.optim.SGD,
) -> torch.optim.SGD:
    """Build the optimizer, with learning rates of zero until `set_learning_rates` is called."""
    optimizer: torch.optim.SGD = optimizer_class(
        # A rate is a tensor, so that a captured step sees it change.
        [{"params": list(g.parameters), "lr": torch.zeros((), device=device)} for g in groups],
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=True,
    )
    if config.momentum:
        # Zeros give the same first step as no buffer does. A captured step needs the buffers
        # beforehand.
        for group in groups:
            for parameter in group.parameters:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def set_learning_rates(
    optimizer: torch.optim.SGD, groups: Sequence[ParameterGroup], config: SGDConfig, round_: int
) -> None:
    """Set the learning rate of each group for a round."""
    for built, group in zip(optimizer.param_groups, groups, strict=True):
        lr = config.lr if group.lr is None else group.lr
        built["lr"].fill_(lr * config.lr_factor(round_))


def momentum_buffers(optimizer: torch.optim.SGD) -> list[Tensor]:
    """Return all momentum buffers, in the order of the parameters."""
    return [state["momentum_buffer"] for state in optimizer.state.values()]
