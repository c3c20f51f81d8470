"""Configure and build the optimizer, and set its learning rate for each round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fewmore.errors import ConfigError


@dataclass(frozen=True)
class OptimizerConfig:
    """Hold the settings of the optimizer; a round is an epoch, or a number of episodes."""

    lr: float = 0.1  # the learning rate
    optimizer: Literal["sgd", "adamw"] = "sgd"  # sgd or adamw
    momentum: float = 0.9  # of sgd; of adamw its first beta (the second is 0.999)
    nesterov: bool = True  # look ahead by the momentum; of sgd alone
    # Of sgd: added to the gradient, times the weights; of adamw: shrinks the weights at each step.
    weight_decay: float = 5e-4
    schedule: Literal["milestones", "cosine"] = "milestones"  # how the rate falls; cosine: to 0
    milestones: tuple[int, ...] = ()  # rounds at which the rate falls, with schedule=milestones
    decay: float = 0.1  # factor of the rate at each milestone
    warm_up: int = 0  # rounds over which the rate rises linearly, from lr / warm_up
    # Training ends with an exponential moving average of the weights, with this decay a step; the
    # weights before training do not count; 0: with the last step's weights.
    ema: float = 0.0

    def __post_init__(self) -> None:
        wrong = []
        if self.optimizer not in ("sgd", "adamw"):
            wrong.append(f"optimizer must be sgd or adamw, not '{self.optimizer}'")
        if self.schedule not in ("milestones", "cosine"):
            wrong.append(f"schedule must be milestones or cosine, not '{self.schedule}'")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            wrong.append(f"lr must be a number of at least 0, not {self.lr}")
        if not 0 <= self.momentum < 1:
            wrong.append(f"momentum must lie in [0, 1), not {self.momentum}")
        if self.optimizer == "sgd" and self.nesterov and self.momentum == 0:
            wrong.append("nesterov needs a momentum above 0")
        if self.weight_decay < 0:
            wrong.append(f"weight_decay must not be negative, and is {self.weight_decay}")
        if self.warm_up < 0:
            wrong.append(f"warm_up must not be negative, and is {self.warm_up}")
        if not 0 <= self.ema < 1:
            wrong.append(f"ema must lie in [0, 1), not {self.ema}")
        if wrong:
            raise ConfigError("optimizer: " + "; ".join(wrong))

    @property
    def unread(self) -> Mapping[str, str]:
        """Return the settings that the others leave without effect, each with the reason."""
        unread = {}
        if self.optimizer == "adamw":
            unread["nesterov"] = "optimizer=adamw"
        if self.schedule == "cosine":
            unread |= {"milestones": "schedule=cosine", "decay": "schedule=cosine"}
        return unread

    def check_rounds(self, rounds: int) -> None:
        """Refuse a warm-up that is longer than the training."""
        if self.warm_up > rounds:
            raise ConfigError(
                f"optimizer: warm_up must be at most the number of rounds, {rounds}, "
                f"and is {self.warm_up}: lower it too"
            )

    def lr_factor(self, round_: int, rounds: int) -> float:
        """Return the factor of the learning rate in one of the rounds, counted from 0."""
        if self.schedule == "cosine":
            done = max(0, round_ - self.warm_up) / max(1, rounds - self.warm_up)
            factor = (1 + math.cos(math.pi * done)) / 2
        else:
            factor = self.decay ** sum(round_ >= m for m in self.milestones)
        if round_ < self.warm_up:
            factor *= (round_ + 1) / self.warm_up
        return factor


@dataclass(frozen=True)
class EpochsConfig(OptimizerConfig):
    """Hold the settings of training in epochs, which are its rounds."""

    fewest_epochs: ClassVar[int] = 1
    epochs: int = 100  # passes over the images
    batch: int = 128  # images a step
    # What is left of an epoch is left out, or filled up with images of its beginning.
    last_batch: Literal["drop", "fill"] = "drop"

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"epochs": self.fewest_epochs, "batch": 1}
        given = {name: getattr(self, name) for name in least}
        wrong = [
            f"{name} must be at least {least[name]}, not {value}"
            for name, value in given.items()
            if value < least[name]
        ]
        if self.last_batch not in ("drop", "fill"):
            wrong.append(f"last_batch must be drop or fill, not '{self.last_batch}'")
        if wrong:
            raise ConfigError("; ".join(wrong))
        self.check_rounds(self.epochs)


@dataclass
class ParameterGroup:
    """Hold parameters that are trained at the same learning rate."""

    parameters: Sequence[nn.Parameter]
    lr: float | None = None  # None: the config's


def build_optimizer(
    groups: Sequence[ParameterGroup],
    config: OptimizerConfig,
    device: torch.device,
    sgd_class: type = torch.optim.SGD,
) -> torch.optim.Optimizer:
    """Build the optimizer, with learning rates of zero until `set_learning_rates` is called.

    A captured step needs the optimizer's tensors beforehand, so they are made here. Zeros give the
    same first step as none do.
    """
    # A rate is a tensor, so that a captured step sees it change.
    rates = [{"params": list(g.parameters), "lr": torch.zeros((), device=device)} for g in groups]
    parameters = [parameter for group in groups for parameter in group.parameters]
    optimizer: torch.optim.Optimizer
    if config.optimizer == "adamw":
        optimizer = torch.optim.AdamW(
            rates,
            betas=(config.momentum, 0.999),
            weight_decay=config.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        for parameter in parameters:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return optimizer
    optimizer = sgd_class(
        rates,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=True,
    )
    if config.momentum:
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def set_learning_rates(
    optimizer: torch.optim.Optimizer,
    groups: Sequence[ParameterGroup],
    config: OptimizerConfig,
    round_: int,
    rounds: int,
) -> None:
    """Set the learning rate of each group for one of the rounds."""
    for built, group in zip(optimizer.param_groups, groups, strict=True):
        lr = config.lr if group.lr is None else group.lr
        built["lr"].fill_(lr * config.lr_factor(round_, rounds))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all tensors that a step of the optimizer changes, but for the parameters, by name."""
    return {
        f"{number}.{name}": tensor
        for number, state in enumerate(optimizer.state.values())
        for name, tensor in state.items()
    }
