"""Train features on by rotation labels and mixup, and classify by class means.

After S2M2 (Mangla, Singh, Sinha, Kumari, Balasubramanian, Krishnamurthy: Charting the Right
Manifold: Manifold Mixup for Few-shot Learning, WACV 2020), https://arxiv.org/abs/1907.12087. Here
images are mixed instead of features, and a rotation is part of the label.
"""

from dataclasses import dataclass

import torch

from fewmore.data.augment import train_view
from fewmore.methods import decoupled
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.random import derive_seed
from fewmore.training.learn_session import class_prototypes
from fewmore.training.loop import train_epochs
from fewmore.training.mixing import mixup
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.views import rotation_copies


@dataclass(frozen=True)
class Config(decoupled.Config):
    """Hold the settings of the training that follows stage 1."""

    rotations: int = 4  # labels of each class
    alpha: float = 1.0  # shares of mixed images are sampled from Beta(alpha, alpha)
    more_epochs: int = 10  # after stage 1
    more_lr: float = 0.01  # learning rate in them


class RotatedMixup(decoupled.Decoupled):
    """Class means of features that also tell rotations and mixtures apart."""

    config_type = Config
    name = "rotated_mixup"

    def fit(self, base):
        super().fit(base)  # stage 1
        backbone, transform, config = self.network.backbone, self.recipe.transform, self.config
        random = torch.Generator().manual_seed(derive_seed(self.seed, "rotation labels"))
        labels = config.rotations * len(base.class_names)
        head = Classifier("cosine", random_prototypes(labels, backbone.dim, random))
        modules = {"backbone": backbone.train(), "head": head.to(self.runtime.device)}

        def loss_of(indices, generator):
            view = train_view(base, indices, transform, generator)
            view, labels = rotation_copies(view, base.labels[indices], config.rotations)
            mixed = mixup(view, labels, config.alpha, generator)
            return mixed.cross_entropy(head(backbone(mixed.view)))

        parameters = [p for module in modules.values() for p in module.parameters()]
        more = EpochsConfig(epochs=config.more_epochs, lr=config.more_lr)
        runtime, seed = self.runtime, self.seed
        train_epochs("rotations", modules, parameters, loss_of, len(base), more, runtime, seed)
        means = class_prototypes(backbone, base, transform)
        self.network.classifier = Classifier(config.similarity, means)
