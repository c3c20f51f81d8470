"""iCaRL: incremental classifier and representation learning.

Rebuffi, Kolesnikov, Sperl, Lampert: iCaRL: Incremental Classifier and Representation Learning, CVPR 2017,
https://arxiv.org/abs/1611.07725.

A few exemplars of each class are kept, chosen so that their mean is near the class's. A new session trains the whole network on its
images and the exemplars, while the answers for old classes are held to what they were. The head that training needs is not
asked: an image belongs to the class whose exemplars' mean, taken with the network as it is now, lies nearest.

The paper trains sigmoid outputs; here they are a softmax, as stage 1 is the one that other methods share.
"""

import torch.nn.functional as F
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.methods.distillation import Teacher, distillation
from fewmore.methods.exemplars import NearestMean
from fewmore.training.learn_session import new_prototypes, outputs, train_by


class ICaRL(NearestMean):
    """Nearest mean of exemplars, on features that are trained with distillation."""

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, "linear", self.seed)
        self.keep(base)

    def learn(self, session: ImageSet) -> None:
        network, recipe = self.network, self.recipe
        backbone, known = network.backbone, network.classifier
        teacher = Teacher(backbone, known)
        backbone.train(not recipe.session.frozen_norm)
        classifier = network.classifier = known.grown(
            new_prototypes(backbone, session, recipe.transform, recipe.session, self.seed)
        )

        def loss_of(view: Tensor, labels: Tensor) -> Tensor:
            _, scores = outputs(backbone, classifier, view)
            _, before = teacher(view)
            kept = distillation(scores[:, : len(known)], before, recipe.distillation.temperature)
            return F.cross_entropy(scores, labels) + recipe.distillation.weight * kept

        modules = {"backbone": backbone, "classifier": classifier}
        images, stage = self.exemplars.joined_by(session), f"session {self.sessions}"
        train_by(
            loss_of,
            modules,
            images,
            recipe.transform,
            recipe.session,
            self.runtime,
            self.seed,
            stage,
        )
        self.keep(session)
