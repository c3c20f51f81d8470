"""Keep feature directions and margins while a cosine classifier learns on (LUCIR, the row NCM).

Hou, Pan, Loy, Wang, Lin: Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019,
https://doi.org/10.1109/CVPR.2019.00092.

Prototypes of classes with many images are longer and score higher, so scores are cosines with one
learnt scale, and prototypes of old classes stay as they are. A less-forget loss keeps the direction
of each image's features; its weight grows with the share of old classes. A margin ranking loss
keeps exemplars of old classes away from the new prototypes that they are most easily confused with.

The paper classifies by the head or by the nearest mean of exemplars. The row of the comparison is
called nearest class mean (NCM), so the latter is used here. The head would be unbalanced: new
prototypes are trained from five images each, beside 60 that are frozen.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods.base import MethodConfig, Recipe
from fewmore.methods.distillation import Teacher
from fewmore.methods.exemplars import ExemplarConfig, NearestMean
from fewmore.nn.prototypes import Classifier
from fewmore.nn.similarity import TEMPERATURE
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import SessionConfig, new_prototypes, outputs, train_by_loss
from fewmore.training.runtime import Runtime

# Epochs, milestones and data init are the paper's for CIFAR100 and for ImageNet. Its rate (0.1) and
# its weights of the less-forget loss (5 and 10) are for hundreds of images of each new class; these
# were chosen on the validation split of the base classes of CIFAR100 (docs/tuning.md).
RATE, FROZEN_NORM, LESS_FORGET = 0.003, False, 25.0
SESSION = SessionConfig(epochs=160, lr=RATE, milestones=(80, 120), frozen_norm=FROZEN_NORM)
IMAGENET = {"session": {"epochs": 90, "milestones": (30, 60)}}


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the weights of the losses, and the settings of a session.

    Values are the paper's for CIFAR100, but for those that were chosen.
    """

    less_forget: float = LESS_FORGET  # weight of the less-forget loss, λ_base
    ranking: float = 1.0  # weight of the ranking loss
    margin: float = 0.5  # of the ranking loss
    negatives: int = 2  # new classes that an exemplar is ranked against, K
    session: SessionConfig = SESSION
    exemplars: ExemplarConfig = field(default_factory=ExemplarConfig)

    per_benchmark: ClassVar = {"miniimagenet": IMAGENET, "cub200": IMAGENET}
    per_recipe: ClassVar = {
        "quick": {
            "less_forget": 25.0,
            "session": {
                "epochs": 4,
                "batch": 64,
                "lr": 0.001,
                "milestones": (),
                "frozen_norm": False,
            },
            "exemplars": {"per_class": 5},
        }
    }

    def __post_init__(self) -> None:
        if min(self.less_forget, self.ranking, self.margin) < 0 or self.negatives < 1:
            raise ConfigError(
                "less_forget, ranking and margin must not be negative and negatives must be at "
                f"least 1, not {self}"
            )


class LUCIR(NearestMean):
    """Train a cosine classifier whose features keep their directions and margins."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.scale = TEMPERATURE  # of the cosines; initially that of stage 1

    def learn(self, session: ImageSet) -> None:
        """Train backbone, new prototypes and scale on the session and the exemplars."""
        network = self.network
        transform = self.recipe.transform
        config = self.config
        backbone = network.backbone
        known = network.classifier.requires_grad_(False)
        teacher = Teacher(backbone, known)
        backbone.train(not config.session.frozen_norm)
        prototypes = new_prototypes(backbone, session, transform, config.session, self.seed)
        new = Classifier("cosine", prototypes)
        scale = _Scale(self.scale).to(self.runtime.device)
        less_forget = config.less_forget * math.sqrt(len(known) / len(new))

        def loss_of(view: Tensor, labels: Tensor) -> Tensor:
            features, new_logits = outputs(backbone, new, view)
            old_features, _ = teacher(view)
            with torch.autocast(view.device.type, enabled=False):
                cosines = torch.cat([known(features), new_logits], 1) / TEMPERATURE
                drift = (1 - F.cosine_similarity(features, old_features)).mean()
                ranking = ranking_loss(cosines, labels, len(known), config.margin, config.negatives)
                return (
                    F.cross_entropy(scale(cosines), labels)
                    + less_forget * drift
                    + config.ranking * ranking
                )

        train_by_loss(
            loss_of,
            {"backbone": backbone, "new": new, "scale": scale},
            self.exemplars.joined_by(session),
            transform,
            config.session,
            self.runtime,
            self.seed,
            f"session {self.sessions}",
        )
        network.classifier = known.grown(new.prototypes.detach())
        self.scale = float(scale.value.detach())
        self.keep(session)

    def state(self) -> State:
        return {**super().state(), "scale": self.scale}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.scale = state["scale"]


class _Scale(nn.Module):
    """Multiply cosines by one learnt factor."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, cosines: Tensor) -> Tensor:
        return self.value * cosines


def ranking_loss(
    cosines: Tensor, labels: Tensor, known: int, margin: float, negatives: int
) -> Tensor:
    """Penalize new prototypes within a margin of an old image's own prototype.

    For each image of a known class, the `negatives` most similar new prototypes count.
    """
    positive = cosines.gather(1, labels[:, None])
    nearest = cosines[:, known:].topk(min(negatives, cosines.shape[1] - known), 1).values
    loss = F.relu(margin - positive + nearest).mean(1)
    # New images get the weight 0 rather than being left out: in a captured CUDA graph no shape may
    # depend on the batch.
    is_old = (labels < known).to(loss)
    return (loss * is_old).sum() / is_old.sum().clamp(min=1)
