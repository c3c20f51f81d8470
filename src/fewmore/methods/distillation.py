"""Distillation: a network that learns is held to what it answered before.

Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network, 2015, https://arxiv.org/abs/1503.02531.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone
from fewmore.nn.prototypes import Classifier
from fewmore.training.learn_session import outputs


@dataclass(frozen=True)
class DistillationConfig:
    """Hold the weight and the temperature of the distillation loss."""

    weight: float = 1.0  # iCaRL and EEIL add the losses as they are
    temperature: float = 2.0  # EEIL's

    def __post_init__(self) -> None:
        if self.weight < 0 or self.temperature <= 0:
            raise ConfigError(
                "distillation: weight must not be negative and temperature must be positive, "
                f"not {self}"
            )


class Teacher:
    """A network as it is now, which stands still while the original learns on."""

    def __init__(self, backbone: Backbone, classifier: Classifier) -> None:
        self.backbone = copy.deepcopy(backbone).eval().requires_grad_(False)
        self.classifier = copy.deepcopy(classifier).requires_grad_(False)

    @torch.no_grad()
    def __call__(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Features and scores of a batch of views."""
        return outputs(self.backbone, self.classifier, view)


def distillation(
    scores: Tensor, wanted: Tensor, temperature: float, heads: Sequence[int] | None = None
) -> Tensor:
    """How far softened answers are from the teacher's: the divergence, a mean over images and a sum over heads.

    A head is a number of consecutive classes with a softmax of their own; without `heads` there is one for all. The square of
    the temperature keeps the gradients' scale.
    """
    sizes = [wanted.shape[1]] if heads is None else list(heads)
    total = torch.zeros((), device=scores.device)
    for own, teachers in zip(
        torch.split(scores, sizes, 1), torch.split(wanted, sizes, 1), strict=True
    ):
        soft, target = F.log_softmax(own / temperature, 1), F.log_softmax(teachers / temperature, 1)
        total = total + F.kl_div(soft, target, reduction="batchmean", log_target=True)
    return total * temperature**2
