"""Hold a backbone and its classifier: the part that most methods are built around."""

import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from fewmore.data.download import pretrained_weights
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, DownloadError, fitted
from fewmore.methods.recipe import Recipe
from fewmore.nn.backbones import Backbone, build, check_weights, is_of_timm, plain_name
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.nn.weights import set_tensors
from fewmore.random import derive_seed
from fewmore.training.checkpoint import State, read_state, write_state
from fewmore.training.distributed import from_first, is_first
from fewmore.training.embed import embed
from fewmore.training.learn_session import class_prototypes
from fewmore.training.pretrain import pretrain
from fewmore.training.runtime import Round, Runtime
from fewmore.training.stage1_cache import cache_file, code_of, locked
from fewmore.training.views import unrotated


class Network:
    """Map images to features by `backbone`, and features to scores by `classifier`.

    Both are missing until `fit` or `restore`.
    """

    def __init__(self, recipe: Recipe, runtime: Runtime) -> None:
        self.recipe = recipe
        self.runtime = runtime
        self._backbone: Backbone | None = None
        self._classifier: Classifier | None = None
        self.kept: dict[str, Tensor] = {}  # what the objective of stage 1 keeps beside them

    @property
    def backbone(self) -> Backbone:
        """Return the backbone, once there is one."""
        return fitted(self._backbone)

    @property
    def classifier(self) -> Classifier:
        """Return the classifier, once there is one."""
        return fitted(self._classifier)

    @classifier.setter
    def classifier(self, classifier: Classifier) -> None:
        self._classifier = classifier.to(self.runtime.device)

    def fit(self, base: ImageSet, similarity: str, seed: int, stage: str = "pretrain") -> None:
        """Train stage 1, or take it from the cache where another method trained the same."""
        weights = self._weights_file()
        recipe = self.recipe
        folder = self.runtime.stage1_cache
        pretrain_code = code_of(type(recipe.pretrain), recipe.pretrain.objective_type)
        if folder is None or pretrain_code is None or not self._trains:
            self._train(base, similarity, seed, stage, weights)
            return
        settings = (
            recipe.backbone,
            recipe.transform.plain,  # other test views change nothing in training
            recipe.pretrain,
            pretrain_code,
            similarity,
            seed,
            stage,
            base.content_hash(),
        )
        path = cache_file(folder, self.runtime, weights, settings)
        # Under torchrun the others go along with the first, which alone reads and writes.
        with locked(path) if is_first() else nullcontext():
            cached = from_first(lambda: read_state(path) if path.exists() else None)
            if cached is not None:
                self._take_over(cached, stage)
                return
            began = time.monotonic()
            self._train(base, similarity, seed, stage, weights)
            if is_first():
                write_state(path, {"network": self.state(), "seconds": time.monotonic() - began})

    def _take_over(self, cached: State, stage: str) -> None:
        """Restore a cached stage 1, and report the seconds that it took when it was trained."""
        self.restore(cached["network"])
        epochs = self.recipe.pretrain.epochs
        seconds = cached["seconds"]
        self.runtime.on_round(Round(f"{stage} (shared)", epochs, epochs, 0.0, 0.0, seconds))

    @property
    def _trains(self) -> bool:
        return self.recipe.pretrain.epochs > 0

    def _weights_file(self) -> Path | None:
        """Return the file of the weights that the backbone starts from, or None for random ones."""
        weights = self.recipe.weights
        if weights is None:
            return None
        backbone = self.recipe.backbone
        if weights == "imagenet" and is_of_timm(backbone):
            name = backbone.removesuffix(":pretrained")
            raise ConfigError(
                f"weights 'imagenet' are not those of '{backbone}': for the weights that timm has "
                f"of it, set backbone={name}:pretrained and weights=none"
            )
        if weights == "imagenet":
            try:
                return pretrained_weights(plain_name(backbone), self.runtime.data_root)
            except DownloadError as error:
                raise DownloadError(f"{error}, or give a file with --set weights=FILE") from error
        check_weights(backbone, Path(weights))
        return Path(weights)

    def _train(
        self, base: ImageSet, similarity: str, seed: int, stage: str, weights: Path | None
    ) -> None:
        recipe = self.recipe
        random = weights is None and not recipe.backbone.endswith(":pretrained")
        if random and not self._trains:
            raise ConfigError(
                f"stage 1 trains nothing, and {recipe.backbone} has random weights: give "
                "pretrained ones with --set weights=FILE, or --set backbone=timm:NAME:pretrained"
            )
        backbone = build(recipe.backbone, derive_seed(seed, "backbone"), weights)
        backbone.check_size(recipe.transform.size)
        self._place(backbone)
        generator = torch.Generator().manual_seed(derive_seed(seed, "classifier"))
        copies = recipe.pretrain.labels_per_class
        labels = len(base.class_names) * copies
        prototypes = random_prototypes(labels, self.backbone.dim, generator)
        self.classifier = Classifier(similarity, prototypes)
        if not self._trains:
            means = class_prototypes(self.backbone, base, recipe.transform.plain)
            self.classifier = Classifier(similarity, means)
            return
        self.kept = pretrain(
            self.backbone,
            self.classifier,
            base,
            recipe.transform,
            recipe.pretrain,
            self.runtime,
            seed,
            stage,
        )
        if copies > 1:
            trained = self.classifier.prototypes.detach()
            self.classifier = Classifier(similarity, unrotated(trained, copies).clone())

    def embed(self, images: ImageSet) -> Tensor:
        """Compute the features of images, (n, d), or of separate test views (n, views · d)."""
        return embed(self.backbone, images, self.recipe.transform)

    @torch.no_grad()
    def scores_of(self, features: Tensor, view: int = 0) -> Tensor:
        """Score features of a test view against all classes, (n, classes)."""
        classifier = self.classifier
        prototypes = classifier.prototypes
        if prototypes.shape[1] > features.shape[1]:  # of separate views, side by side
            own = torch.split(prototypes, features.shape[1], 1)[view]
            classifier = Classifier(classifier.similarity, own)
        scores: Tensor = classifier(features)
        return scores

    def state(self) -> State:
        """Copy what was learnt; what is learnt later does not change the copy."""
        classifier = self.classifier
        kept = {name: tensor.clone() for name, tensor in self.kept.items()}
        return {
            "backbone": {name: t.clone() for name, t in self.backbone.state_dict().items()},
            "classifier": {
                "similarity": classifier.similarity,
                "rows": classifier.prototypes.detach().clone(),
            },
            **({"kept": kept} if kept else {}),
        }

    def restore(self, state: State) -> None:
        """Go back to a state."""
        backbone = build(self.recipe.backbone.removesuffix(":pretrained"))  # nothing is downloaded
        set_tensors(backbone, state["backbone"])
        self._place(backbone)
        classifier = state["classifier"]
        self.classifier = Classifier(classifier["similarity"], classifier["rows"].clone())
        device = self.runtime.device
        self.kept = {name: tensor.to(device) for name, tensor in state.get("kept", {}).items()}

    def _place(self, backbone: Backbone) -> None:
        """Move the backbone to the device, channels last: the faster layout for convolutions."""
        placed = backbone.to(self.runtime.device)
        self._backbone = placed.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
