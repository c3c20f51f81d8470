"""A backbone and its classifier: the part that most methods hold."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from fewmore import __version__
from fewmore.data.download import pretrained_weights
from fewmore.data.images import ImageSet
from fewmore.errors import NotFitted
from fewmore.methods.base import Recipe
from fewmore.nn.backbones import Backbone, build, set_tensors
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.random import derive_seed
from fewmore.training.checkpoint import State, read_state, write_state
from fewmore.training.embed import embed
from fewmore.training.loop import Round, Runtime, letting_others_work
from fewmore.training.pretrain import pretrain

_BEING_MADE: dict[Path, threading.Lock] = {}  # one a stage 1 that is shared


@contextmanager
def _alone_at(kept: Path) -> Iterator[None]:
    """Of runs side by side that need the same stage 1, the first makes it and the others wait."""
    lock = _BEING_MADE.setdefault(kept, threading.Lock())
    with letting_others_work():
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Network:
    """Images to features by `backbone`, features to scores by `classifier`; empty until `fit` or `restore`."""

    def __init__(self, recipe: Recipe, runtime: Runtime) -> None:
        self.recipe = recipe
        self.runtime = runtime
        self._backbone: Backbone | None = None
        self._classifier: Classifier | None = None

    @property
    def backbone(self) -> Backbone:
        if self._backbone is None:
            raise NotFitted("nothing is learnt yet: call fit with the base session first")
        return self._backbone

    @property
    def classifier(self) -> Classifier:
        if self._classifier is None:
            raise NotFitted("nothing is learnt yet: call fit with the base session first")
        return self._classifier

    @classifier.setter
    def classifier(self, classifier: Classifier) -> None:
        self._classifier = classifier.to(self.runtime.device)

    def fit(self, base: ImageSet, similarity: str, seed: int, stage: str = "pretrain") -> None:
        """Stage 1, from where the recipe says that weights start; taken over where another method did the very same."""
        kept = self._kept(base, similarity, seed, stage)
        if kept is None:
            self._train(base, similarity, seed, stage)
            return
        with _alone_at(kept):
            if kept.exists():
                self.restore(read_state(kept)["network"])
                epochs = self.recipe.pretrain.epochs
                self.runtime.on_round(Round(f"{stage} (shared)", epochs, epochs, 0.0, 0.0, 0.0))
                return
            self._train(base, similarity, seed, stage)
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_state(kept, {"network": self.state()})

    def _kept(self, base: ImageSet, similarity: str, seed: int, stage: str) -> Path | None:
        """Where this stage 1 is kept: a name made of all that decides its outcome."""
        if self.runtime.share is None:
            return None
        r = self.recipe
        settings = (r.backbone, r.weights, r.transform, r.pretrain, similarity, seed, stage)
        parts = (
            __version__,
            *settings,
            self.runtime.device.type,
            self.runtime.half,
            base.content_hash(),
        )
        return self.runtime.share / f"{derive_seed(*parts):014x}.safetensors"

    def _train(self, base: ImageSet, similarity: str, seed: int, stage: str) -> None:
        weights = None
        if self.recipe.weights is not None:
            weights = (
                pretrained_weights(self.recipe.backbone)
                if self.recipe.weights == "imagenet"
                else Path(self.recipe.weights)
            )
        self._place(build(self.recipe.backbone, derive_seed(seed, "backbone"), weights))
        rows = random_prototypes(
            len(base.class_names),
            self.backbone.dim,
            torch.Generator().manual_seed(derive_seed(seed, "classifier")),
        )
        self.classifier = Classifier(similarity, rows)
        pretrain(
            self.backbone,
            self.classifier,
            base,
            self.recipe.transform,
            self.recipe.pretrain,
            self.runtime,
            seed,
            stage,
        )

    def embed(self, images: ImageSet) -> Tensor:
        return embed(self.backbone, images, self.recipe.transform)

    @torch.no_grad()
    def scores_of(self, features: Tensor) -> Tensor:
        scores: Tensor = self.classifier(features)
        return scores

    def state(self) -> State:
        """A copy: what is learnt later does not change it."""
        classifier = {
            "similarity": self.classifier.similarity,
            "rows": self.classifier.prototypes.detach().clone(),
        }
        return {
            "backbone": {name: t.clone() for name, t in self.backbone.state_dict().items()},
            "classifier": classifier,
        }

    def restore(self, state: State) -> None:
        backbone = build(self.recipe.backbone)
        set_tensors(backbone, state["backbone"])
        self._place(backbone)
        self.classifier = Classifier(
            state["classifier"]["similarity"], state["classifier"]["rows"].clone()
        )

    def _place(self, backbone: Backbone) -> None:
        # Channels last is the faster layout for convolutions, on a CPU and on a GPU.
        self._backbone = backbone.to(self.runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
