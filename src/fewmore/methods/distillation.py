"""Hold a network that learns to the outputs it had before (knowledge distillation).

Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network, 2015,
https://arxiv.org/abs/1503.02531.
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

    weight: float = 1.0  # of the distillation loss; in the papers of iCaRL and EEIL it is 1
    temperature: float = 2.0  # of the softmax of old and new logits; EEIL has 2

    def __post_init__(self) -> None:
        if self.weight < 0 or self.temperature <= 0:
            raise ConfigError(
                "distillation: weight must not be negative and temperature must be positive, "
                f"not {self}"
            )


class Teacher:
    """Copy a network, and keep the copy frozen while the original learns on."""

    def __init__(self, backbone: Backbone, classifier: Classifier) -> None:
        self.backbone = copy.deepcopy(backbone).eval().requires_grad_(False)
        self.classifier = copy.deepcopy(classifier).requires_grad_(False)

    @torch.no_grad()
    def __call__(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features and logits of a batch of views."""
        return outputs(self.backbone, self.classifier, view)


def distillation_loss(
    logits: Tensor,
    teacher_logits: Tensor,
    temperature: float,
    heads: Sequence[int] | None = None,
) -> Tensor:
    """Compute the KL divergence from the teacher's softened predictions.

    It is a mean over images and a sum over heads. A head is a number of consecutive classes with a
    softmax of their own; without `heads`, all classes are one head. The factor temperature² keeps
    the scale of the gradients.
    """
    sizes = [teacher_logits.shape[1]] if heads is None else list(heads)
    parts = zip(torch.split(logits, sizes, 1), torch.split(teacher_logits, sizes, 1), strict=True)
    total = torch.zeros((), device=logits.device)
    for student, teacher in parts:
        log_p = F.log_softmax(student / temperature, 1)
        log_target = F.log_softmax(teacher / temperature, 1)
        total = total + F.kl_div(log_p, log_target, reduction="batchmean", log_target=True)
    return total * temperature**2
