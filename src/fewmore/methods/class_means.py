"""Classify by class means on frozen features: what TEEN and FACT have in common."""

from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.methods.base import ScoresPerView
from fewmore.nn.prototypes import Classifier
from fewmore.training.learn_session import class_prototypes


class ClassMeans(ScoresPerView):
    """Classify by the cosines with the mean features of each class."""

    def fit(self, base: ImageSet) -> None:
        """Train the backbone (stage 1), and take the base classes' means."""
        self.network.fit(base, self.config.head, self.seed)
        self.network.classifier = Classifier("cosine", self._means(base))
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        """Append prototypes of the new classes."""
        prototypes = self.new_prototypes(self._means(session))
        self.network.classifier = self.network.classifier.grown(prototypes)
        self.sessions += 1

    def new_prototypes(self, means: Tensor) -> Tensor:
        """Return the prototypes of new classes with these means."""
        return means

    def _means(self, images: ImageSet) -> Tensor:
        return class_prototypes(self.network.backbone, images, self.recipe.transform)

    def view_scores(self, features: Tensor, view: int) -> Tensor:
        """Return cosines with the prototypes."""
        return self.network.scores_of(features, view)
