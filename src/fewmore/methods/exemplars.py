"""Exemplars: the few images of each class that a method keeps, and says that it keeps.

They are chosen by herding (Rebuffi et al.: iCaRL, CVPR 2017, https://arxiv.org/abs/1611.07725): the next exemplar is the
image that brings the mean of those chosen nearest to the mean of the class, so the first few represent it best.

C: classes   n: images of the largest class   d: features
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet, concatenate
from fewmore.errors import ConfigError, NotFittedError
from fewmore.methods.base import Method, Recipe
from fewmore.methods.network import Network
from fewmore.nn.backbones import Backbone
from fewmore.nn.prototypes import Classifier, class_means
from fewmore.training.checkpoint import State
from fewmore.training.embed import embed
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class ExemplarConfig:
    """Hold how many images of old classes a method keeps."""

    per_class: int = 20  # iCaRL's 2,000 over 100 classes; a class with fewer images keeps all

    def __post_init__(self) -> None:
        if self.per_class < 1:
            raise ConfigError(f"exemplars: per_class must be at least 1, not {self.per_class}")


class Exemplars:
    """The images kept so far, as bytes: class by class, the best first."""

    keeps = "a few images a class"

    def __init__(self, config: ExemplarConfig) -> None:
        self.config = config
        self._images: ImageSet | None = None

    def __len__(self) -> int:
        return 0 if self._images is None else len(self._images)

    @property
    def images(self) -> ImageSet:
        if self._images is None:
            raise NotFittedError("nothing is learnt yet: call fit with the base session first")
        return self._images

    def add(self, session: ImageSet, features: Tensor) -> None:
        """Keep the best images of a session's classes."""
        chosen = session.select(
            herd(features, session.labels, len(session.class_names), self.config.per_class)
        ).compact()
        self._images = chosen if self._images is None else concatenate([self._images, chosen])

    def joined_by(self, session: ImageSet) -> ImageSet:
        """All that a session can be trained on: what was kept, and its own images."""
        return concatenate([self.images, session])

    def balanced(self) -> ImageSet:
        """As many of each class as the smallest class has."""
        counts = self.images.class_counts()
        rank = (
            torch.arange(len(self), device=counts.device)
            - (counts.cumsum(0) - counts)[self.images.labels]
        )
        return self.images.select((rank < counts.min()).nonzero().squeeze(1)).compact()

    def means(self, backbone: Backbone, transform: Transform) -> Classifier:
        """The nearest mean of exemplars as a classifier, with the network as it is now; features are compared by their directions."""
        features = F.normalize(embed(backbone, self.images, transform), dim=1)
        return Classifier(
            "cosine", class_means(features, self.images.labels, len(self.images.class_names))
        )

    def state(self) -> State:
        return self.images.state()

    def restore(self, state: State, device: torch.device) -> None:
        self._images = ImageSet.from_state(state).to(device)


class NearestMean(Method):
    """A method that keeps exemplars and answers by the nearest of their means, with the network as it is now."""

    keeps = Exemplars.keeps

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.network = Network(recipe, runtime)
        self.exemplars = Exemplars(self.config.exemplars)

    def keep(self, session: ImageSet) -> None:
        """A session is learnt: its best images are kept."""
        self.exemplars.add(session, self.network.embed(session))
        self.sessions += 1

    @torch.no_grad()
    def scores(self, images: ImageSet) -> Tensor:
        means = self.exemplars.means(self.network.backbone, self.recipe.transform)
        scores: Tensor = means(self.network.embed(images))
        return scores

    def images_kept(self) -> int:
        return len(self.exemplars)

    def state(self) -> State:
        network = self.network.state()  # says so where nothing was learnt
        return {"sessions": self.sessions, "network": network, "exemplars": self.exemplars.state()}

    def restore(self, state: State) -> None:
        self.sessions = state["sessions"]
        self.network.restore(state["network"])
        self.exemplars.restore(state["exemplars"], self.runtime.device)


def herd(features: Tensor, labels: Tensor, classes: int, per_class: int) -> Tensor:
    """Positions of the exemplars of every class, class by class, the best first; all classes take their turns at once."""
    counts = torch.bincount(labels, minlength=classes)
    largest = int(counts.max())
    column = torch.arange(largest, device=labels.device)
    there_Cn = column < counts[:, None]
    place_Cn = torch.argsort(labels, stable=True)[
        ((counts.cumsum(0) - counts)[:, None] + column).clamp(max=len(labels) - 1)
    ]
    features_Cnd = F.normalize(features, dim=1)[place_Cn] * there_Cn[..., None]
    mean_Cd = features_Cnd.sum(1) / counts[:, None].clamp(min=1)
    total_Cd, free_Cn, picks = torch.zeros_like(mean_Cd), there_Cn.clone(), []
    for step in range(1, min(per_class, largest) + 1):
        # Of vectors of length one, the one that brings the mean nearest is the one furthest in the direction that is lacking.
        fit_Cn = (features_Cnd @ (step * mean_Cd - total_Cd)[..., None]).squeeze(-1)
        best_C1 = fit_Cn.masked_fill(~free_Cn, -torch.inf).argmax(1, keepdim=True)
        total_Cd = total_Cd + features_Cnd.gather(
            1, best_C1[..., None].expand(-1, -1, features.shape[1])
        ).squeeze(1)
        free_Cn = free_Cn.scatter(1, best_C1, False)
        picks.append(best_C1)
    chosen = place_Cn.gather(1, torch.cat(picks, 1))
    return chosen[
        there_Cn[:, : chosen.shape[1]]
    ]  # a class with fewer images has them all chosen by then
