"""Train once on folders of images, then add classes from a few images each.

    classifier = IncrementalClassifier().fit("photos")
    classifier.learn({"okapi": ["a.jpg", "b.jpg", "c.jpg"]})
    classifier.predict("unknown.jpg", top=3)
    classifier.save("animals.fewmore")

or, as scikit-learn has it, with lists of images and of labels:

    IncrementalClassifier().fit(paths, labels).predict(more_paths)

A new class is the mean of its images' features, so learning costs little more than embedding the
images, and old classes are not touched by it. The state of a classifier is one immutable object,
which a change replaces in one step: any number of threads may predict while another one learns,
and each prediction uses the classes of one moment. Changes take turns.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from fewmore import __version__
from fewmore.classifier import engines, hub, model_file
from fewmore.classifier.broken import use_readable
from fewmore.classifier.calibration import Calibration
from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.classes import (
    KnownClass,
    SupportSet,
    check_free,
    clean_name,
    name_notes,
)
from fewmore.classifier.duplicates import drop_duplicates
from fewmore.classifier.embedding import Embedder, Progress, no_progress
from fewmore.classifier.feature_cache import CachedEmbedder
from fewmore.classifier.fitting.fine_tune import fine_tune, to_seconds
from fewmore.classifier.fitting.from_scratch import fit_from_scratch
from fewmore.classifier.fitting.frozen import fit_frozen
from fewmore.classifier.fitting.result import FitResult
from fewmore.classifier.fitting.transform import pretrained_transform
from fewmore.classifier.heads import Head, Scorer
from fewmore.classifier.history import Change, utc_now
from fewmore.classifier.inputs import (
    ImagesByClass,
    LabeledImages,
    as_batch,
    as_image_sequence,
    as_labels,
    check_several_classes,
    collect_images,
    label_images,
)
from fewmore.classifier.manners import SklearnManners
from fewmore.classifier.model import Model
from fewmore.classifier.results import (
    Evaluation,
    LearnResult,
    Prediction,
    Queries,
    evaluate_predictions,
)
from fewmore.classifier.text import NONE_OF_THESE, count_noun, join_names
from fewmore.data.augment import Transform
from fewmore.data.download import pretrained_weights
from fewmore.data.folders import printable
from fewmore.data.threads import one_core_each
from fewmore.errors import ConfigError, DataError, DownloadError, StateError, first_line
from fewmore.methods.base import Recipe
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import Backbone, build, is_of_timm, plain_name
from fewmore.nn.weights import set_tensors

DEFAULT_BACKBONE = "mobilenet_v2"
PREDICTED = 256  # batches of a stream whose features are whitened and predicted at a time


@dataclass(frozen=True, eq=False)
class _State:
    """Hold a fitted classifier; replaced as a whole, never changed in place."""

    model: Model  # as trained or read; the classes of now are in `class_set`
    embedder: Embedder
    class_set: ClassSet
    scorer: Scorer


class IncrementalClassifier(SklearnManners):
    """Classify images, and learn new classes from a few images each.

    An estimator of scikit-learn: it can be cloned, pickled, put into a `Pipeline` and
    cross-validated. The constructor only stores its arguments.

    Args:
        backbone: name of the network that computes features; by default mobilenet_v2.
            "mirrored:mobilenet_v2" averages those of an image and of its mirror image.
        weights: "imagenet", the path of a weight file, or None to train from scratch. Pretrained
            weights are not trained further, unless `fine_tune` says for how long.
        device: "auto", "cpu", "cuda" or a torch.device.
        seed: of everything that is drawn at random.
        recipe: settings for training from scratch; by default they follow the images.
        image_size: side of the images that a pretrained backbone sees, in pixels; by default that
            which its weights were made for. A little more may be right a little more often.
        fine_tune: how long to train pretrained weights further, such as "10m"; by default not at
            all. It is kept only where it wins on held-out classes and images.
        engine: "torch", "onnxruntime" or "openvino"; "auto" is the fastest that is installed. They
            give the same features to rounding. "onnxruntime-int8" is faster and less exact.
    """

    def __init__(
        self,
        backbone: str | None = None,
        weights: str | Path | None = "imagenet",
        *,
        device: str | torch.device = "auto",
        seed: int = 0,
        recipe: Recipe | None = None,
        image_size: int | None = None,
        fine_tune: str | float | None = None,
        engine: str = "auto",
    ) -> None:
        self.backbone = backbone
        self.weights = weights
        self.device = device
        self.seed = seed
        self.recipe = recipe
        self.image_size = image_size
        self.fine_tune = fine_tune
        self.engine = engine
        self._state: _State | None = None
        self._lock = threading.RLock()  # held by changes

    # Training

    def fit(
        self,
        X: ImagesByClass,
        y: Any = None,
        *,
        progress: Progress | None = None,
        skip_broken: bool = False,
    ) -> "IncrementalClassifier":
        """Train on a folder with one sub-folder a class, a manifest, an `ImageSet`, or a dict.

        Or on images in a list or an array, with their labels in `y`: texts or whole numbers. Then
        `predict` answers with such labels; texts are in composed form (NFC), without spaces around
        them.

        With a pretrained backbone each image is embedded once, and how features are whitened is
        chosen on simulated sessions of held-out images. A fifth of the images at a time (from
        scratch: a tenth) is held out to calibrate confidences and to set the threshold for "none
        of these"; with fewer than 4 images in a class nothing is. `notes_` says what was decided.
        Features are kept in memory, and images are not: see `fewmore.classifier.fitting`. Files
        that cannot be read are all named in one error, or left out with a note if `skip_broken`.
        """
        progress = progress or no_progress
        device = _resolve_device(self.device)
        engines.check_name(self.engine, device)
        if self.fine_tune is not None:
            to_seconds(self.fine_tune)  # what cannot be is refused at once
        base = collect_images(X) if y is None else label_images(X, y)
        check_several_classes(X, base)
        _check_free(base.names)
        notes: list[str] = []
        with one_core_each():
            backbone = self._pretrained_backbone(notes, progress)
        if backbone is not None:
            name = (self.backbone or DEFAULT_BACKBONE).removesuffix(":pretrained")
            transform = pretrained_transform(name, backbone, self.image_size)
            base, fitted = use_readable(
                base,
                skip_broken,
                progress,
                lambda images: self._fit_pretrained(backbone, images, transform, device, progress),
            )
            weights = Path(str(self.weights)).name  # a file's folder concerns nobody else
        else:
            base, (fitted, recipe) = use_readable(
                base,
                skip_broken,
                progress,
                lambda images: fit_from_scratch(
                    self.recipe, self.backbone, images, device, self.seed, progress, self.engine
                ),
            )
            name = recipe.backbone
            transform = recipe.transform
            weights = "from scratch"
            notes.append(f"{name} was trained from scratch")
        notes += [*base.notes, *name_notes(base.names, ())]
        origin: dict[str, str | int] = {
            "fewmore": __version__,
            "weights": weights,
            "seed": self.seed,
            "when": utc_now(),
        }
        if y is not None:
            origin["labels"] = "str" if np.asarray(y).dtype.kind in "OU" else "int"
        with one_core_each():
            model = fitted.to_model(name, transform, notes, origin)
            self._set_model(model, fitted.backbone, fitted.head)
        return self

    def _fit_pretrained(
        self,
        backbone: Backbone,
        images: LabeledImages,
        transform: Transform,
        device: torch.device,
        progress: Progress,
    ) -> FitResult:
        """Fit on a pretrained backbone, trained further if that is wanted and helps."""
        notes: tuple[str, ...] = ()
        if self.fine_tune is not None:
            seconds = to_seconds(self.fine_tune)
            backbone, note = fine_tune(
                backbone, images, transform, device, seconds, self.seed, progress
            )
            notes = (note,)
        with one_core_each():
            embedder = CachedEmbedder(backbone, transform, device, self.engine)
        fitted = fit_frozen(embedder, backbone, images, self.seed, progress)
        return replace(fitted, notes=(*notes, *fitted.notes))

    def _pretrained_backbone(self, notes: list[str], progress: Progress) -> Backbone | None:
        """Build the backbone with its weights; None if it is to be trained from scratch."""
        if self.recipe is not None or self.weights is None:
            self._check_from_scratch()
            return None
        name = self.backbone or DEFAULT_BACKBONE
        if self.weights != "imagenet":
            path = Path(self.weights).expanduser()
            kind = path.name
        elif is_of_timm(name):
            return build(f"{name.removesuffix(':pretrained')}:pretrained")
        else:
            path = _imagenet_weights(name, progress)
            kind = "ImageNet"
        further = "" if self.fine_tune else ", not trained further"
        notes.append(f"{name} with {kind} weights{further}")
        return build(name, weights=path)

    def _check_from_scratch(self) -> None:
        """Refuse arguments that are for pretrained weights alone."""
        if self.image_size is not None:
            raise ConfigError(
                "image_size is for pretrained weights: a network that is trained from scratch "
                "has the size of its recipe"
            )
        if self.fine_tune is not None:
            raise ConfigError(
                "fine_tune is for pretrained weights: a network that is trained from scratch "
                "is trained as long as its recipe says"
            )

    def build_embedder(self, progress: Progress | None = None) -> Embedder:
        """Return what computes features: with pretrained weights as long as nothing is fitted."""
        if self._state is not None:
            return self._state.embedder
        backbone = self._pretrained_backbone([], progress or no_progress)
        if backbone is None:
            raise ConfigError("nothing is fitted, and without pretrained weights nothing can be")
        name = (self.backbone or DEFAULT_BACKBONE).removesuffix(":pretrained")
        device = _resolve_device(self.device)
        transform = pretrained_transform(name, backbone, self.image_size)
        return Embedder(backbone, transform, device, engine=self.engine)

    # Learning

    def learn(
        self,
        images: ImagesByClass,
        progress: Progress | None = None,
        *,
        skip_broken: bool = False,
    ) -> LearnResult:
        """Add classes, or more images of known ones.

        `images` is a dict such as {"okapi": ["a.jpg", …]} or a folder of class folders. Learning
        is all or nothing: everything is decoded and embedded before anything changes, and if an
        image cannot be read, the classifier stays as it was, unless `skip_broken` leaves such
        images out. An image that its class has already is not counted again. The warnings of the
        result say so, and they name new classes that are close to a known one.
        """
        progress = progress or no_progress
        embedder = self._fitted_state().embedder
        given = collect_images(images)
        _check_free(given.names, self.names)
        support, (features, hashes) = use_readable(
            given,
            skip_broken,
            progress,
            lambda given: embedder.embed(given.images, given.titles, True, progress),
        )
        return self.learn_embedded(support, features, hashes)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "IncrementalClassifier":
        """Learn images with their labels in `y`; the first call trains, as `fit` does.

        New classes may come with any call, so `classes` is not needed, and not used.
        """
        if self._state is None:
            return self.fit(X, y)
        self.learn(label_images(X, y))
        return self

    def learn_embedded(
        self, support: LabeledImages, features: Tensor, hashes: tuple[int, ...]
    ) -> LearnResult:
        """Learn images embedded elsewhere, from their features (n, d) and content hashes."""
        with self._lock:
            classes = self._fitted_state().class_set.classes
            shots, warnings = drop_duplicates(support, features, hashes, classes)
            return self._learn(shots, [*support.notes, *warnings])

    def learn_features(self, features: Mapping[str, Tensor]) -> LearnResult:
        """Learn from features (k, d) of each class, as `embed` returns them."""
        dim = self._fitted_state().model.dim
        support = []
        for name, of_class in features.items():
            of_class = torch.as_tensor(of_class)
            if of_class.dim() != 2 or of_class.shape[1] != dim or not len(of_class):
                raise DataError(
                    f"features of '{name}' must have the shape (images, {dim}), "
                    f"and have {tuple(of_class.shape)}"
                )
            if not bool(torch.isfinite(of_class).all()):
                raise DataError(f"features of '{name}' hold numbers that are not finite")
            support.append(SupportSet(clean_name(name), of_class.float()))
        names = [shots.name for shots in support]
        _check_free(names, self.names)
        if len(set(names)) < len(names):
            raise DataError(f"class names must differ: {join_names(names)}")
        with self._lock:
            return self._learn(support, [])

    def _learn(self, support: list[SupportSet], warnings: list[str]) -> LearnResult:
        state = self._fitted_state()
        if not support:
            return LearnResult([], [], warnings, state.class_set.version)
        class_set = state.class_set.learn(support)
        new = class_set.classes[len(state.class_set.classes) :]
        added = [known.name for known in new]
        refined = [shots.name for shots in support if shots.name not in added]
        warnings = [
            *warnings,
            *name_notes(added, state.class_set.names),
            *self._closeness_warnings(state.scorer, new),
        ]
        self._set_class_set(class_set)
        return LearnResult(added, refined, warnings, class_set.version)

    def _closeness_warnings(self, scorer: Scorer, added: Sequence[KnownClass]) -> list[str]:
        """Warn of new classes that are close to one that was known before."""
        limit = self._fitted_state().model.calibration.closeness
        if limit is None or not len(scorer):
            return []
        warnings = []
        for new in added:
            closeness, position = scorer.closeness(new.mean, new.count).max(0)
            if float(closeness) > limit:
                nearest = scorer.classes[int(position)].name
                warnings.append(
                    f"{new.name} is close to {nearest}: they may be taken for one another"
                )
        return warnings

    def remove_images(self, name: str, images: Any) -> None:
        """Take images out of a class: the files, or the same images otherwise, that it learnt."""
        embedder = self._fitted_state().embedder
        sequence = as_image_sequence(images)
        features, hashes = embedder.embed(sequence, _titles(sequence), hashes=True)
        self.remove_embedded(name, features, hashes)

    def remove_embedded(self, name: str, features: Tensor, hashes: tuple[int, ...]) -> None:
        """Take images out of a class, by their features (n, d) and content hashes."""
        with self._lock:
            first = {digest: index for index, digest in reversed(list(enumerate(hashes)))}
            shots = SupportSet(clean_name(name), features[list(first.values())], tuple(first))
            self._set_class_set(self._fitted_state().class_set.remove(shots))

    def forget(self, names: str | int | Iterable[str | int]) -> None:
        """Remove classes. Undo data stays in the model file until 20 more changes were made."""
        if isinstance(names, str) or not isinstance(names, Iterable):
            names = [names]
        with self._lock:
            class_set = self._fitted_state().class_set
            self._set_class_set(class_set.forget([clean_name(name) for name in names]))

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        check_free(clean_name(new))
        with self._lock:
            self._set_class_set(self._fitted_state().class_set.rename(old, new))

    def undo(self) -> str:
        """Take back the last change (learn, remove, forget or rename), and say which one that was.

        The last 20 changes can be taken back, one by one.
        """
        with self._lock:
            class_set, change = self._fitted_state().class_set.undo()
            self._set_class_set(class_set)
        return f"undone: the {change} ({change.when})"

    def with_class_set(self, class_set: ClassSet) -> "IncrementalClassifier":
        """Return another classifier with the same backbone and other classes.

        The two share memory for what they have in common; neither changes the other.
        """
        other = type(self)(**self.get_params())
        other._state = self._fitted_state()
        other._set_class_set(class_set)
        return other

    def _set_class_set(self, class_set: ClassSet) -> None:
        state = self._fitted_state()
        _as_label_array(class_set.names, state)  # or refuse a name that is no label
        scorer = state.scorer.with_classes(class_set.classes)
        self._state = replace(state, class_set=class_set, scorer=scorer)

    # Prediction

    @overload
    def predict(self, X: Any, top: int) -> list[Prediction]: ...

    @overload
    def predict(self, X: Any, top: None = None) -> Any: ...

    def predict(self, X: Any, top: int | None = None) -> Any:
        """Predict the class of each image; one image gives a list of one.

        With `top`, a list of `Prediction`, with so many of the most likely classes, their
        confidences, and whether the image is of any of them. Without it, an array of labels if the
        classifier was trained by `fit(X, y)`; otherwise the same as with `top=1`.

        Images come as a list, an array, a generator or a folder. Several threads may call it at
        once.
        """
        state = self._state_with_classes()
        predictions = _predict(_embed(state.embedder, X), 1 if top is None else top, state)
        if top is None and "labels" in state.model.origin:
            return _as_label_array([one.names[0] for one in predictions], state)
        return predictions

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated confidences, (images, classes), in the order of `classes_`."""
        state = self._state_with_classes()
        confidences = _confidences(_embed(state.embedder, X), state).cpu().double()
        return (confidences / confidences.sum(1, keepdim=True)).numpy()  # sums of exactly one

    def predict_features(self, features: Tensor, top: int = 1) -> list[Prediction]:
        """Predict from features (q, d), as `embed` returns them."""
        state = self._state_with_classes()
        features = torch.as_tensor(features)
        if features.dim() != 2 or features.shape[1] != state.model.dim:
            raise DataError(
                f"features must have the shape (images, {state.model.dim}), "
                f"and have {tuple(features.shape)}"
            )
        if not bool(torch.isfinite(features).all()):
            raise DataError("some features are not finite numbers: leave these images out")
        return _predict(features.float().to(state.embedder.device), top, state)

    def embed(self, images: Any) -> Tensor:
        """Return the features of images, (n, d)."""
        return _embed(self._fitted_state().embedder, images)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy on images with their labels in `y`, or by class as `fit` takes them.

        A label that the classifier does not know counts as an error.
        """
        if y is None:
            return self.evaluate(X).accuracy
        images = as_batch(X)
        labels = [clean_name(label) for label in as_labels(y, len(images)).tolist()]
        names = [one.names[0] for one in self.predict(images, top=1)]
        correct = [name == label for name, label in zip(names, labels, strict=True)]
        return float(np.average(correct, weights=sample_weight))

    def evaluate(
        self,
        images: ImagesByClass,
        progress: Progress | None = None,
        *,
        unknown: Any = (),
        skip_broken: bool = False,
    ) -> Evaluation:
        """Measure accuracy, by class and in all, on images of known classes, in a stream.

        `unknown` are images of no known class, of which the share is measured that is predicted as
        "none of these".
        """
        state = self._state_with_classes()
        progress = progress or no_progress
        queries = collect_images(images)
        label_of = torch.tensor([state.class_set.index(name) for name in queries.names])
        unknown_images = LabeledImages((), (), (), ())
        if len(others := as_image_sequence(unknown)):
            unknown_images = collect_images({NONE_OF_THESE: others})

        def predict(given: LabeledImages, stage: str) -> tuple[list[Prediction], list[int]]:
            return _predict_stream(state, given.images, given.titles, partial(progress, stage))

        queries, (predictions, hashes) = use_readable(
            queries, skip_broken, progress, partial(predict, stage="evaluating")
        )
        unknown_images, (of_unknown, _) = use_readable(
            unknown_images,
            skip_broken,
            progress,
            partial(predict, stage="evaluating unknown images"),
        )
        return evaluate_predictions(
            Queries(
                predictions,
                label_of[torch.tensor(queries.labels)],
                queries.names,
                hashes,
                queries.titles,
            ),
            of_unknown,
            state.class_set,
            (*queries.notes, *unknown_images.notes),
        )

    # Attributes

    @property
    def names(self) -> list[str]:
        """Return the names of the known classes, in the order they were learnt."""
        return list(self._fitted_state().class_set.names)

    @property
    def classes_(self) -> Any:
        """Return the names, or an array of labels if the classifier was trained by `fit(X, y)`."""
        state = self._fitted_state()
        return _as_label_array(self.names, state) if "labels" in state.model.origin else self.names

    def __len__(self) -> int:
        """Return the number of known classes."""
        return 0 if self._state is None else len(self._state.class_set.classes)

    def __bool__(self) -> bool:
        """Return True, as for any object: a classifier without classes is one too."""
        return True

    def __contains__(self, name: object) -> bool:
        """Return whether a class of this name is known."""
        return self._state is not None and str(name) in self._state.class_set.names

    def __repr__(self) -> str:
        text = super().__repr__()
        if self._state is None:
            return text
        names = self._state.class_set.names
        return f"<{text}, {count_noun(len(names), 'class')}: {join_names(names)}>"

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether anything is learnt."""
        return self._state is not None

    @property
    def history_(self) -> list[Change]:
        """Return the changes since training, that one included, without undone ones."""
        return list(self._fitted_state().class_set.history)

    @property
    def notes_(self) -> list[str]:
        """Return what training decided, and why."""
        return list(self._fitted_state().model.notes)

    @property
    def version(self) -> int:
        """Return a number that grows with every change."""
        return self._fitted_state().class_set.version

    @property
    def model(self) -> Model:
        """Return everything that the classifier consists of at this moment."""
        state = self._fitted_state()
        return replace(state.model, class_set=state.class_set)

    @property
    def calibration(self) -> Calibration:
        """Return what held-out images said in training; the threshold is for the classes of now."""
        return _calibration(self._fitted_state())

    @property
    def scorer(self) -> Scorer:
        """Return what scores features at this moment."""
        return self._fitted_state().scorer

    @property
    def embedder(self) -> Embedder:
        """Return what computes features of images."""
        return self._fitted_state().embedder

    def info(self) -> dict[str, Any]:
        """Describe classes, history, calibration, sizes and origin as JSON values."""
        model = self.model
        class_set = model.class_set
        return {
            "classes": {known.name: known.count for known in class_set.classes},
            "images": sum(known.count for known in class_set.classes),
            "history": [
                {**asdict(change), "classes": list(change.classes)} for change in class_set.history
            ],
            "undoable": len(class_set.undo_steps),
            "version": class_set.version,
            "backbone": model.backbone,
            "features": model.dim,
            "image size": model.transform.size,
            "classifier": model.head_name,
            "calibration": asdict(self.calibration),
            "bytes": model.sizes(),
            "notes": list(model.notes),
            "origin": dict(model.origin),
        }

    # Files

    def save(self, path: str | Path) -> None:
        """Write the classifier to one file, atomically."""
        model_file.write(path, self.model)

    @classmethod
    def load(
        cls, path: str | Path, device: str | torch.device = "auto", engine: str = "auto"
    ) -> "IncrementalClassifier":
        """Read a classifier that `save` wrote, to any device."""
        model = model_file.read(path)
        classifier = cls(model.backbone, device=device, engine=engine)
        classifier._restore(model)
        return classifier

    def share_backbone(self, other: "IncrementalClassifier") -> bool:
        """Use the backbone of another classifier, if it is the same; return whether it is.

        So a process that has many classifiers has their common backbone in memory once.
        """
        with self._lock:
            own, others = self._fitted_state(), other._fitted_state()
            if not own.model.has_backbone_of(others.model):
                return False
            embedder = others.embedder.shared_with(own.embedder)
            if embedder is None:
                return False
            model = replace(own.model, weights=others.model.weights)
            self._state = replace(own, model=model, embedder=embedder)
            return True

    def save_pretrained(self, folder: str | Path, *, license: str | None = None) -> None:
        """Write a folder with the model file and a model card, which is kept if there is one."""
        hub.save(self, folder, None, license)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device = "auto",
        engine: str = "auto",
        **options: Any,
    ) -> "IncrementalClassifier":
        """Read a classifier from the Hub, such as "user/birds", or from a folder.

        `options` are those of `huggingface_hub.hf_hub_download`: revision, token, cache_dir, ….
        """
        return cls.load(hub.find(name_or_path, **options), device, engine)

    def push_to_hub(self, repo_id: str, *, license: str | None = None, **options: Any) -> str:
        """Upload the model file and a model card to the Hub; return the address of the commit.

        `options` are those of `ModelHubMixin.push_to_hub`: private, token, commit_message, ….
        """
        return hub.push(self, repo_id, license, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments and the model: the rest is made from them."""
        return {**self.get_params(), "model": None if self._state is None else self.model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = state.pop("model")
        self.__init__(**state)  # type: ignore[misc]
        if model is not None:
            self._restore(model)

    def _restore(self, model: Model) -> None:
        """Make the backbone and the head of a model, on the device of this classifier."""
        target = _resolve_device(self.device)
        backbone = build(model.backbone)
        set_tensors(backbone, model.weights)
        adapter = None
        if model.adapter is not None:
            width = model.dim if model.projection is None else model.projection.shape[1]
            adapter = Adapter(width, model.adapter_config).eval().requires_grad_(False)
            set_tensors(adapter, model.adapter)
            adapter = adapter.to(target)
        projection = None if model.projection is None else model.projection.to(target)
        head = Head(target, model.dim, model.variance, adapter, projection)
        self._set_model(model, backbone, head)

    def _set_model(self, model: Model, backbone: Backbone, head: Head) -> None:
        state = _State(
            model,
            Embedder(backbone, model.transform, head.device, model.whitening, self.engine),
            model.class_set,
            Scorer.build(head, model.class_set.classes),
        )
        with self._lock:
            self._state = state

    def _fitted_state(self) -> _State:
        if self._state is None:
            from fewmore.classifier.not_fitted import NotFittedError

            raise NotFittedError(
                "nothing is learnt yet: call fit with images of the first classes, "
                "or load a model file"
            )
        return self._state

    def _state_with_classes(self) -> _State:
        state = self._fitted_state()
        if not state.class_set.classes:
            raise StateError("no class is known, all were forgotten: learn some, or undo")
        return state


def load(
    path: str | Path, device: str | torch.device = "auto", engine: str = "auto"
) -> IncrementalClassifier:
    """Read a classifier from a model file, to any device."""
    return IncrementalClassifier.load(path, device, engine)


def _check_free(names: Sequence[str], known: Sequence[str] = ()) -> None:
    for name in names:
        if name not in known:
            check_free(name)


def _embed(embedder: Embedder, images: Any) -> Tensor:
    sequence = as_image_sequence(images)
    return embedder.embed(sequence, _titles(sequence))[0]


def _titles(images: Sequence[Any]) -> list[str]:
    return [
        printable(image) if isinstance(image, (str, Path)) else f"image {number}"
        for number, image in enumerate(images, 1)
    ]


def _predict_stream(
    state: _State, images: Sequence[Any], titles: Sequence[str], report: Callable[[int, int], None]
) -> tuple[list[Prediction], list[int]]:
    """Return the predictions and the content hashes of images that are never all in memory."""
    predictions: list[Prediction] = []
    hashes: list[int] = []
    waiting: list[Tensor] = []
    for batch, features in state.embedder.stream(images, titles, hashes=True):
        waiting.append(features)
        hashes += batch.hashes
        if len(waiting) == PREDICTED or len(hashes) == len(images):
            predictions += _predict(state.embedder.whiten(torch.cat(waiting)), 1, state)
            waiting.clear()
        report(len(hashes), len(images))
    return predictions, hashes


def _calibration(state: _State) -> Calibration:
    """Return the calibration for as many classes as are known now."""
    return state.model.calibration.for_classes(len(state.scorer))


def _confidences(features: Tensor, state: _State) -> Tensor:
    """Return the calibrated confidences of all classes, (q, N)."""
    return (state.scorer.scores(features) / state.model.calibration.temperature).softmax(1)


def _as_label_array(names: Sequence[str], state: _State) -> np.ndarray:
    """Return names as labels of the type that `fit` got."""
    if state.model.origin.get("labels") != "int":
        return np.array(names, dtype=str)
    for name in names:
        if not re.fullmatch("0|-?[1-9][0-9]*", name):
            raise StateError(
                f"the classes are whole numbers, as they were in `fit`, and '{name}' is none: "
                "give a number"
            )
    numbers = [int(name) for name in names]
    limits = np.iinfo(np.int64)
    if large := [number for number in numbers if not limits.min <= number <= limits.max]:
        raise StateError(f"a label has at most 64 bits, and {large[0]} has more: give another one")
    return np.array(numbers, dtype=np.int64)


def _predict(features: Tensor, top: int, state: _State) -> list[Prediction]:
    if top < 1:
        raise ConfigError(f"top must be at least 1, not {top}")
    threshold = _calibration(state).threshold
    confidences = _confidences(features, state)
    best, positions = confidences.topk(min(top, len(state.scorer)), dim=1)
    familiarities = state.scorer.familiarity(features).tolist()
    names = state.class_set.names
    return [
        Prediction(
            names=tuple(names[position] for position in of_image),
            confidences=tuple(confidence),
            known=threshold is None or familiarity >= threshold,
            familiarity=familiarity,
        )
        for of_image, confidence, familiarity in zip(
            positions.tolist(), best.tolist(), familiarities, strict=True
        )
    ]


def _imagenet_weights(backbone: str, progress: Progress) -> Path:
    """Return the file of a backbone's ImageNet weights, which is fetched if it is not there."""

    def report(done: int, total: int | None) -> None:
        progress("downloading weights", done, total or done)

    try:
        return pretrained_weights(plain_name(backbone), on_progress=report)
    except DownloadError as error:
        raise DownloadError(
            f"{error}; or train from scratch, which takes hundreds of images a class and "
            "far longer: --weights none (in Python: weights=None)"
        ) from error


def _resolve_device(device: str | torch.device) -> torch.device:
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        if reason.startswith("Expected one of"):  # and twenty names that nobody has
            reason = "there is no such device"
        raise ConfigError(
            f"device '{device}' cannot be used ({reason}): take auto, cpu, cuda or mps"
        ) from error
    return resolved
