"""LUCIR: learning a unified classifier incrementally via rebalancing; the comparison's row NCM.

Hou, Pan, Loy, Wang, Lin: Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019,
https://openaccess.thecvf.com/content_CVPR_2019/html/Hou_Learning_a_Unified_Classifier_Incrementally_via_Rebalancing_CVPR_2019_paper.html.

Classes with many images have longer rows and higher scores, so scores are cosines with one learnt scale, and rows of old classes stay as
they are. A less-forget loss keeps the direction of each image's features, the more strongly the fewer of the classes are new. A
margin ranking loss keeps the exemplars of old classes away from the new rows that they are most easily taken for.

The paper answers by the head or by the nearest mean of exemplars. The comparison's name for the row, nearest class mean, is the
latter, and it is used here: rows of five images that were trained beside 60 standing ones have nothing to balance them.
"""

import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods.base import MethodConfig, Recipe
from fewmore.methods.distillation import Teacher
from fewmore.methods.exemplars import ExemplarConfig, NearestMean
from fewmore.nn.prototypes import Classifier
from fewmore.nn.similarity import TEMPERATURE
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import SessionConfig, new_prototypes, outputs, train_by
from fewmore.training.runtime import Runtime

# Epochs, milestones and data init are the paper's.
SESSION = SessionConfig(epochs=160, lr=0.01, milestones=(80, 120))


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the weights of the losses, and how a session is learnt.

    Values are the paper's for CIFAR100, but for the rate and `less_forget`: those of the paper, 0.1
    and 5, are for hundreds of images of each new class. The ones here were chosen on base classes
    alone (results/bench-tuning-gpu.json).
    """

    less_forget: float = 25.0  # λ_base
    ranking: float = 1.0
    margin: float = 0.5
    negatives: int = 2  # K
    session: SessionConfig = SESSION
    exemplars: ExemplarConfig = field(default_factory=ExemplarConfig)

    def __post_init__(self) -> None:
        if min(self.less_forget, self.ranking, self.margin) < 0 or self.negatives < 1:
            raise ConfigError(
                "less_forget, ranking and margin must not be negative and negatives must be at "
                f"least 1, not {self}"
            )

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "Config":
        if recipe != "quick":
            return cls()
        return cls(
            session=replace(SESSION, epochs=4, batch=64, lr=0.001, milestones=()),
            exemplars=ExemplarConfig(per_class=5),
        )


class LUCIR(NearestMean):
    """A cosine classifier whose features keep their directions and their distance from new classes."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.scale = TEMPERATURE  # of the cosines; stage 1's to begin with

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, self.config.head, self.seed)
        self.keep(base)

    def learn(self, session: ImageSet) -> None:
        network, recipe, config = self.network, self.recipe, self.config
        backbone, known = network.backbone, network.classifier.requires_grad_(False)
        teacher = Teacher(backbone, known)
        backbone.train(not config.session.frozen_norm)
        new = Classifier(
            "cosine", new_prototypes(backbone, session, recipe.transform, config.session, self.seed)
        )
        scale = _Scale(self.scale).to(self.runtime.device)
        less_forget = config.less_forget * math.sqrt(len(known) / len(new))

        def loss_of(view: Tensor, labels: Tensor) -> Tensor:
            features, of_new = outputs(backbone, new, view)
            before, _ = teacher(view)
            with torch.autocast(view.device.type, enabled=False):
                cosines = torch.cat([known(features), of_new], 1) / TEMPERATURE
                kept = (1 - F.cosine_similarity(features, before)).mean()
                ranked = ranking(cosines, labels, len(known), config.margin, config.negatives)
                return (
                    F.cross_entropy(scale(cosines), labels)
                    + less_forget * kept
                    + config.ranking * ranked
                )

        modules = {"backbone": backbone, "new": new, "scale": scale}
        images, stage = self.exemplars.joined_by(session), f"session {self.sessions}"
        train_by(
            loss_of,
            modules,
            images,
            recipe.transform,
            config.session,
            self.runtime,
            self.seed,
            stage,
        )
        network.classifier, self.scale = (
            known.grown(new.prototypes.detach()),
            float(scale.value.detach()),
        )
        self.keep(session)

    def state(self) -> State:
        return {**super().state(), "scale": self.scale}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.scale = state["scale"]


class _Scale(nn.Module):
    """One learnt factor."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, cosines: Tensor) -> Tensor:
        return self.value * cosines


def ranking(cosines: Tensor, labels: Tensor, known: int, margin: float, negatives: int) -> Tensor:
    """How far, on average over images of known classes, the nearest new rows are within a margin of the image's own row."""
    own = cosines.gather(1, labels[:, None])
    nearest = cosines[:, known:].topk(min(negatives, cosines.shape[1] - known), 1).values
    loss = F.relu(margin - own + nearest).mean(1)
    old = (labels < known).to(
        loss
    )  # a weight rather than a choice: the shape must not depend on the batch
    return (loss * old).sum() / old.sum().clamp(min=1)
