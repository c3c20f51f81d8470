"""Keep a few images of each class, and classify by the means of their features.

Exemplars are chosen by herding (Rebuffi et al.: iCaRL, CVPR 2017,
https://arxiv.org/abs/1611.07725): the next exemplar is the image that brings the mean of all chosen
ones nearest to the mean of the class, so the first few represent the class best.

C: classes   n: images of the largest class   d: features
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet, concatenate
from fewmore.errors import ConfigError, fitted
from fewmore.methods.base import Recipe, TrainedNetwork
from fewmore.nn.backbones import Backbone
from fewmore.nn.prototypes import Classifier, class_means
from fewmore.training.checkpoint import State
from fewmore.training.embed import embed
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class ExemplarConfig:
    """Hold how many images of each class are kept."""

    per_class: int = 20  # images kept of each class; of iCaRL 2,000 in 100 classes

    def __post_init__(self) -> None:
        if self.per_class < 1:
            raise ConfigError(f"exemplars: per_class must be at least 1, not {self.per_class}")


class Exemplars:
    """Hold the exemplars as uint8 images, class by class, the most representative first."""

    keeps = "a few images a class"

    def __init__(self, config: ExemplarConfig) -> None:
        self.config = config
        self._images: ImageSet | None = None

    def __len__(self) -> int:
        return 0 if self._images is None else len(self._images)

    @property
    def images(self) -> ImageSet:
        """Return all exemplars."""
        return fitted(self._images)

    def add(self, session: ImageSet, features: Tensor) -> None:
        """Keep the most representative images of a session's classes."""
        classes = len(session.class_names)
        chosen = session.select(herd(features, session.labels, classes, self.config.per_class))
        chosen = chosen.compact()
        self._images = chosen if self._images is None else concatenate([self._images, chosen])

    def joined_by(self, session: ImageSet) -> ImageSet:
        """Return the exemplars and a session's images, all that the session can be trained on."""
        return concatenate([self.images, session])

    def balanced(self) -> ImageSet:
        """Return as many exemplars of each class as the smallest class has."""
        counts = self.images.class_counts()
        first = counts.cumsum(0) - counts
        rank = torch.arange(len(self), device=counts.device) - first[self.images.labels]
        return self.images.select((rank < counts.min()).nonzero().squeeze(1)).compact()

    def means(self, backbone: Backbone, transform: Transform) -> Classifier:
        """Return a nearest-mean classifier: means of normalized features of the current network."""
        features = F.normalize(embed(backbone, self.images, transform), dim=1)
        classes = len(self.images.class_names)
        return Classifier("cosine", class_means(features, self.images.labels, classes))

    def state(self) -> State:
        """Return the exemplars as a state."""
        return self.images.state()

    def restore(self, state: State, device: torch.device) -> None:
        """Return to a state."""
        self._images = ImageSet.from_state(state).to(device)


class NearestMean(TrainedNetwork):
    """Keep exemplars, and classify by the nearest of their means under the current network."""

    keeps = Exemplars.keeps

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.exemplars = Exemplars(self.config.exemplars)

    def fit(self, base: ImageSet) -> None:
        """Train the network (stage 1), and keep exemplars."""
        self.network.fit(base, self.config.head, self.seed)
        self.keep(base)

    def keep(self, session: ImageSet) -> None:
        """Keep exemplars of a session once it is learnt."""
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
        return {**super().state(), "exemplars": self.exemplars.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.exemplars.restore(state["exemplars"], self.runtime.device)


def herd(features: Tensor, labels: Tensor, classes: int, per_class: int) -> Tensor:
    """Choose exemplars of all classes at once; return their indices, class by class, best first."""
    counts = torch.bincount(labels, minlength=classes)
    largest = int(counts.max())
    column = torch.arange(largest, device=labels.device)
    exists_Cn = column < counts[:, None]
    first = counts.cumsum(0) - counts
    index_Cn = torch.argsort(labels, stable=True)[
        (first[:, None] + column).clamp(max=len(labels) - 1)
    ]
    features_Cnd = F.normalize(features, dim=1)[index_Cn] * exists_Cn[..., None]
    mean_Cd = features_Cnd.sum(1) / counts[:, None].clamp(min=1)
    sum_Cd = torch.zeros_like(mean_Cd)
    free_Cn = exists_Cn.clone()
    picks = []
    for step in range(1, min(per_class, largest) + 1):
        # Of unit vectors, the one that brings the mean nearest has the largest inner product with
        # what is missing from the sum.
        fit_Cn = (features_Cnd @ (step * mean_Cd - sum_Cd)[..., None]).squeeze(-1)
        best_C1 = fit_Cn.masked_fill(~free_Cn, -torch.inf).argmax(1, keepdim=True)
        best_C1d = best_C1[..., None].expand(-1, -1, features.shape[1])
        sum_Cd = sum_Cd + features_Cnd.gather(1, best_C1d).squeeze(1)
        free_Cn = free_Cn.scatter(1, best_C1, False)
        picks.append(best_C1)
    chosen = index_Cn.gather(1, torch.cat(picks, 1))
    # By the steps beyond its size, a smaller class has all its images chosen.
    return chosen[exists_Cn[:, : chosen.shape[1]]]
