"""IncrementalClassifier: train once on folders of images, then add classes from a few images each, for ever.

    classifier = IncrementalClassifier().fit("photos")
    classifier.learn({"okapi": ["a.jpg", "b.jpg", "c.jpg"]})
    classifier.predict("unknown.jpg", top=3)
    classifier.save("animals.fewmore")

A new class is the mean of its images' features, so learning costs little more than looking at the images, and old
classes are not touched by it. All that is known lies in one immutable object, which a change replaces in one move: any number
of threads may predict while another one learns, and each prediction is by the classes of one moment. Changes take turns.
"""

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewmore import __version__
from fewmore.classifier import fitting
from fewmore.classifier import model_file as modelfile
from fewmore.classifier.calibration import expected_calibration_error
from fewmore.classifier.classes import (
    Change,
    Knowledge,
    KnownClass,
    Lesson,
    clean_name,
    listed,
    now,
)
from fewmore.classifier.embedding import (
    Embedder,
    LabelledImages,
    Progress,
    Shown,
    one_or_more,
    shown,
    squares,
)
from fewmore.classifier.heads import Head, Scorer
from fewmore.classifier.model_file import Calibration, Model
from fewmore.data.download import pretrained_weights
from fewmore.errors import ConfigError, DataError, DownloadError, NotFitted
from fewmore.methods.base import Recipe
from fewmore.nn.adapter import Adapter, AdapterConfig
from fewmore.nn.backbones import Backbone, build, set_tensors

PRETRAINED = "mobilenet_v2"  # the backbone where none is named


@dataclass(frozen=True)
class Prediction:
    """The answer for one image: the likeliest classes first."""

    names: tuple[str, ...]
    confidences: tuple[float, ...]  # of each name; over all known classes they add up to 1
    known: bool  # False is "none of these"
    familiarity: float  # likeness to the most similar class, at most about 1; `known` compares it with a threshold


@dataclass(frozen=True)
class Learned:
    """What a call of `learn` did."""

    added: list[str]
    refined: list[str]
    warnings: list[str]
    version: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well the classifier does on images whose classes are given."""

    accuracy: float  # share of all images; "none of these" is not looked at
    by_class: dict[str, float]
    classes: tuple[str, ...]
    confusion: Tensor  # (C, C) int64: rows are true classes, columns answers
    ece: float  # expected calibration error
    rejected: float  # share of the images that were answered with "none of these"
    images: int


@dataclass(frozen=True, eq=False)
class _State:
    """All that a fitted classifier is; replaced as a whole, never changed in place."""

    model: Model  # as it was trained or read; what is known now is `knowledge`
    embedder: Embedder
    knowledge: Knowledge
    scorer: Scorer


class IncrementalClassifier:
    """A classifier of images that learns new classes from a few images each.

    `backbone` and `weights` say where features come from: by default mobilenet_v2 with ImageNet weights, which are not
    trained further. `weights` may be the path of a file; with `weights=None` a network is trained from scratch, by `recipe`
    where one is given. The constructor only stores.
    """

    def __init__(
        self,
        backbone: str | None = None,
        weights: str | Path | None = "imagenet",
        *,
        device: str | torch.device = "auto",
        seed: int = 0,
        recipe: Recipe | None = None,
    ) -> None:
        self.backbone = backbone
        self.weights = weights
        self.device = device
        self.seed = seed
        self.recipe = recipe
        self._state: _State | None = None
        self._changing = threading.RLock()

    # Training

    def fit(
        self, images: LabelledImages, progress: Progress | None = None
    ) -> "IncrementalClassifier":
        """Train on a folder with one sub-folder a class, a set of images, or a table from names to images.

        With a pretrained backbone each image is embedded, and an adapter is trained and kept only if it helps. A fifth
        of the images at a time (from scratch: a tenth) is held out to calibrate confidences and to set the threshold for
        "none of these"; with fewer than 4 images in a class nothing is. `notes_` says what was decided. Memory hardly
        grows with the number of images: see `fewmore.classifier.fitting`.
        """
        progress = progress or (lambda stage, done, total: None)
        device = _device(self.device)
        base = shown(images)
        if len(base.names) < 2:
            raise DataError(
                f"one class was given, {base.names[0]}, and at least 2 are needed to train: give more"
            )
        notes: list[str] = []
        backbone = self._pretrained(notes, progress)
        if backbone is not None:
            name = (self.backbone or PRETRAINED).removesuffix(":pretrained")
            transform = fitting.transform_for(name, pretrained=True)
            fitted = fitting.fit_frozen(backbone, transform, base, device, self.seed, progress)
        else:
            fitted, recipe = fitting.fit_from_scratch(
                self.recipe,
                self.backbone if self.weights is None else None,
                base,
                device,
                self.seed,
                progress,
            )
            name, transform = recipe.backbone, recipe.transform
            notes.append(f"{name} was trained from scratch")
        head = fitted.head
        model = Model(
            backbone=name,
            transform=transform,
            weights={key: tensor.cpu() for key, tensor in fitted.backbone.state_dict().items()},
            dim=fitted.backbone.dim,
            knowledge=Knowledge.founded(fitted.base.classes),
            calibration=fitted.calibration,
            spread=head.spread,
            adapter=None
            if head.adapter is None
            else {key: tensor.cpu() for key, tensor in head.adapter.state_dict().items()},
            adapter_config=AdapterConfig() if head.adapter is None else head.adapter.config,
            projection=None if head.projection is None else head.projection.cpu(),
            notes=(*notes, *fitted.notes),
            origin={
                "fewmore": __version__,
                "weights": _origin(self.weights, backbone),
                "seed": self.seed,
                "when": now(),
            },
        )
        self._adopt(model, fitted.backbone, head)
        return self

    def _pretrained(self, notes: list[str], progress: Progress) -> Backbone | None:
        """The backbone with its weights; None where it is to be trained from scratch."""
        if self.recipe is not None or self.weights is None:
            return None
        name = self.backbone or PRETRAINED
        if name.startswith("timm:"):
            return build(f"{name.removesuffix(':pretrained')}:pretrained")
        path = Path(self.weights).expanduser()
        if self.weights == "imagenet":
            try:
                path = pretrained_weights(
                    name,
                    on_progress=lambda done, total: progress(
                        "downloading weights", done, total or done
                    ),
                )
            except DownloadError as error:
                notes.append(
                    f"no ImageNet weights for {name} could be had, so a network is trained from scratch ({error})"
                )
                return None
        notes.append(
            f"{name} with {'ImageNet' if self.weights == 'imagenet' else path} weights, not trained further"
        )
        return build(name, weights=path)

    # Learning

    def learn(self, images: LabelledImages) -> Learned:
        """Add classes, or more images of known ones, from a table such as {"okapi": ["a.jpg", …]} or a folder of class folders.

        All or nothing: everything is decoded and embedded before anything changes, and where an image cannot be read the
        classifier is as it was. An image that its class has already is not counted again; the warnings say so, and they
        name new classes that are close to a known one.
        """
        given = shown(images)
        return self.learn_embedded(
            given, *self._fitted().embedder.embedded(given.images, given.titles, prints=True)
        )

    def learn_embedded(self, given: Shown, features: Tensor, prints: tuple[int, ...]) -> Learned:
        """The same where the images were embedded elsewhere: their features (n, d) and fingerprints, in their order."""
        with self._changing:
            return self._learn(*self._lessons(given, features, prints))

    def learn_features(self, features: Mapping[str, Tensor]) -> Learned:
        """The same from features (k, d), as `embed` gives them."""
        dim = self._fitted().model.dim
        lessons = []
        for name, rows in features.items():
            rows = torch.as_tensor(rows)
            if rows.dim() != 2 or rows.shape[1] != dim or not len(rows):
                raise DataError(
                    f"features of '{name}' must have the shape (images, {dim}), and have {tuple(rows.shape)}"
                )
            if not bool(torch.isfinite(rows).all()):
                raise DataError(f"features of '{name}' hold numbers that are not finite")
            lessons.append(Lesson(clean_name(name), rows.float()))
        if len({lesson.name for lesson in lessons}) < len(lessons):
            raise DataError(
                f"class names must differ: {listed([lesson.name for lesson in lessons])}"
            )
        with self._changing:
            return self._learn(lessons, [])

    def _lessons(
        self, given: Shown, features: Tensor, prints: tuple[int, ...]
    ) -> tuple[list[Lesson], list[str]]:
        """The images of each class that it does not have yet, and warnings about the others."""
        known = {one.name: one.prints for one in self._fitted().knowledge.classes}
        rows: dict[str, list[int]] = {name: [] for name in given.names}
        met: dict[int, list[str]] = {}  # in this call: classes by fingerprint
        warnings = []
        for row, (label, number, title) in enumerate(
            zip(given.labels, prints, given.titles, strict=True)
        ):
            name = given.names[label]
            own = met.setdefault(number, [])
            if name in own or number in known.get(name, ()):
                warnings.append(
                    f"{title} is a duplicate: {name} has that image already, and it is not counted again"
                )
                continue
            if other := next(
                (one for one, others in known.items() if number in others), own[0] if own else None
            ):
                warnings.append(f"{title} is an image of {other} too: it now counts for both")
            own.append(name)
            rows[name].append(row)
        return [
            Lesson(name, features[fresh], tuple(prints[row] for row in fresh))
            for name, fresh in rows.items()
            if fresh
        ], warnings

    def _learn(self, lessons: list[Lesson], warnings: list[str]) -> Learned:
        state = self._fitted()
        if not lessons:
            return Learned([], [], warnings, state.knowledge.version)
        knowledge = state.knowledge.learned(lessons)
        new = knowledge.classes[len(state.knowledge.classes) :]
        added = [known.name for known in new]
        warnings = [*warnings, *self._close(state.scorer, new)]
        self._change(knowledge)
        return Learned(
            added,
            [lesson.name for lesson in lessons if lesson.name not in added],
            warnings,
            knowledge.version,
        )

    def _close(self, scorer: Scorer, added: Sequence[KnownClass]) -> list[str]:
        """New classes that look like one that was known before."""
        limit = self._fitted().model.calibration.closeness
        if limit is None or not len(scorer):
            return []
        warnings = []
        for new in added:
            closeness, place = scorer.closeness(new.mean, new.count).max(0)
            if float(closeness) > limit:
                warnings.append(
                    f"{new.name} is close to {scorer.classes[int(place)].name}: they may be taken for one another"
                )
        return warnings

    def forget(self, names: str | Iterable[str]) -> None:
        """Remove classes. What is needed to undo this stays in the model file until 20 more changes were made."""
        with self._changing:
            self._change(
                self._fitted().knowledge.forgot([names] if isinstance(names, str) else names)
            )

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        with self._changing:
            self._change(self._fitted().knowledge.renamed(old, new))

    def undo(self) -> str:
        """Take back the last change (learn, forget or rename), and say which that was. The last 20 can be taken back, one by one."""
        with self._changing:
            knowledge, change = self._fitted().knowledge.undone()
            self._change(knowledge)
        return f"undone: the {change} ({change.when})"

    def _change(self, knowledge: Knowledge) -> None:
        state = self._fitted()
        self._state = replace(
            state, knowledge=knowledge, scorer=state.scorer.knowing(knowledge.classes)
        )

    def knowing(self, knowledge: Knowledge) -> "IncrementalClassifier":
        """Another classifier with the same backbone that knows this. The two share what they have in common; neither changes the other."""
        other = copy.copy(self)
        other._changing = threading.RLock()
        other._change(knowledge)
        return other

    # Asking

    def predict(self, images: Any, top: int = 1) -> list[Prediction]:
        """The likeliest `top` classes of each image; a single image gives a list of one. May run in several threads at once."""
        state = self._knowing()
        several = one_or_more(images)
        features, _ = state.embedder.embedded(
            several, [_title(one, number) for number, one in enumerate(several, 1)]
        )
        return _predicted(features, top, state)

    def predict_features(self, features: Tensor, top: int = 1) -> list[Prediction]:
        """The same from features (q, d), as `embed` gives them."""
        state, features = self._knowing(), torch.as_tensor(features)
        if features.dim() != 2 or features.shape[1] != state.model.dim:
            raise DataError(
                f"features must have the shape (images, {state.model.dim}), and have {tuple(features.shape)}"
            )
        return _predicted(features.float().to(state.embedder.device), top, state)

    def embed(self, images: Any) -> Tensor:
        """Features of images, (n, d)."""
        several = one_or_more(images)
        return self._fitted().embedder.embedded(
            several, [_title(one, number) for number, one in enumerate(several, 1)]
        )[0]

    def evaluate(self, images: LabelledImages, progress: Progress | None = None) -> Evaluation:
        """Accuracy by class and in all on images of known classes, in a stream."""
        state = self._knowing()
        embedder = state.embedder
        given = shown(images)
        labels = torch.tensor([state.knowledge.found(name) for name in given.names])[
            torch.tensor(given.labels)
        ]
        answers, sure, known = [], [], []
        for batch in squares(given.images, given.titles, embedder.transform, embedder.batch):
            for prediction in _predicted(embedder.features(batch.squares)[0], 1, state):
                answers.append(prediction.names[0])
                sure.append(prediction.confidences[0])
                known.append(prediction.known)
            if progress:
                progress("evaluating", len(answers), len(given))
        places = {name: place for place, name in enumerate(state.knowledge.names)}
        answer = torch.tensor([places[name] for name in answers])
        classes = len(places)
        confusion = torch.bincount(labels * classes + answer, minlength=classes**2).view(
            classes, classes
        )
        right, shown_ = confusion.diagonal(), confusion.sum(1)
        return Evaluation(
            accuracy=float(right.sum() / shown_.sum()),
            by_class={
                name: float(right[places[name]] / shown_[places[name]]) for name in given.names
            },
            classes=state.knowledge.names,
            confusion=confusion,
            ece=expected_calibration_error(torch.tensor(sure), answer == labels),
            rejected=1 - sum(known) / len(known),
            images=len(labels),
        )

    # What there is to know about it

    @property
    def classes_(self) -> list[str]:
        """The known classes, in the order they came."""
        return list(self._fitted().knowledge.names)

    @property
    def history_(self) -> list[Change]:
        """How the present state came about, from training on; what was undone is not in it."""
        return list(self._fitted().knowledge.history)

    @property
    def notes_(self) -> list[str]:
        """What training decided, and why."""
        return list(self._fitted().model.notes)

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._fitted().knowledge.version

    @property
    def model(self) -> Model:
        """All that it is, as it is at this moment."""
        state = self._fitted()
        return replace(state.model, knowledge=state.knowledge)

    @property
    def calibration(self) -> Calibration:
        """What held-out images said in training."""
        return self._fitted().model.calibration

    @property
    def scorer(self) -> Scorer:
        """How features are scored at this moment."""
        return self._fitted().scorer

    @property
    def embedder(self) -> Embedder:
        """How images become features."""
        return self._fitted().embedder

    def info(self) -> dict[str, Any]:
        """What is known, where it came from and how sure it is, as JSON values."""
        model = self.model
        knowledge, tensors = (
            model.knowledge,
            {"backbone": model.weights, "adapter": model.adapter or {}},
        )
        sizes = {
            name: sum(t.numel() * t.element_size() for t in part.values())
            for name, part in tensors.items()
        }
        sizes["projection"] = 0 if model.projection is None else 4 * model.projection.numel()
        sizes["classes"] = sum(8 * model.dim + 8 * len(known.prints) for known in knowledge.classes)
        used = "adapter" if model.adapter is not None else "plain cosine"
        return {
            "classes": {known.name: known.count for known in knowledge.classes},
            "images": sum(known.count for known in knowledge.classes),
            "sessions": sum(change.kind in ("fit", "learn") for change in knowledge.history),
            "changes": len(knowledge.history) - 1,
            "undoable": len(knowledge.reversals),
            "version": knowledge.version,
            "backbone": model.backbone,
            "features": model.dim,
            "image size": model.transform.size,
            "classifier": used,
            "calibration": asdict(model.calibration),
            "bytes": sizes,
            "notes": list(model.notes),
            "origin": dict(model.origin),
        }

    # Files

    def save(self, path: str | Path) -> None:
        """Write everything to one file, in one move."""
        modelfile.write(path, self.model)

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "auto") -> "IncrementalClassifier":
        """Read what `save` wrote, to any device."""
        place, model = _device(device), modelfile.read(path)
        backbone = build(model.backbone)
        set_tensors(backbone, model.weights)
        adapter = None
        if model.adapter is not None:
            width = model.dim if model.projection is None else model.projection.shape[1]
            adapter = Adapter(width, model.adapter_config).eval().requires_grad_(False)
            set_tensors(adapter, model.adapter)
            adapter = adapter.to(place)
        projection = None if model.projection is None else model.projection.to(place)
        classifier = cls(model.backbone, device=device)
        classifier._adopt(
            model, backbone, Head(place, model.dim, model.spread, adapter, projection)
        )
        return classifier

    def _adopt(self, model: Model, backbone: Backbone, head: Head) -> None:
        """Become this model."""
        state = _State(
            model,
            Embedder(backbone, model.transform, head.device),
            model.knowledge,
            Scorer.of(head, model.knowledge.classes),
        )
        with self._changing:
            self._state = state

    def _fitted(self) -> _State:
        if self._state is None:
            raise NotFitted(
                "nothing is learnt yet: call fit with images of the first classes, or load a model file"
            )
        return self._state

    def _knowing(self) -> _State:
        state = self._fitted()
        if not state.knowledge.classes:
            raise ConfigError("no class is known, all were forgotten: learn some, or undo")
        return state


def _predicted(features: Tensor, top: int, state: _State) -> list[Prediction]:
    if top < 1:
        raise ConfigError(f"top must be at least 1, not {top}")
    calibration = state.model.calibration
    confidences = (state.scorer.scores(features) / calibration.temperature).softmax(1)
    sure, places = confidences.topk(min(top, len(state.scorer)), dim=1)
    familiar = state.scorer.familiarity(features).tolist()
    names = state.knowledge.names
    return [
        Prediction(
            tuple(names[place] for place in own_places),
            tuple(own_sure),
            calibration.threshold is None or familiarity >= calibration.threshold,
            familiarity,
        )
        for own_places, own_sure, familiarity in zip(
            places.tolist(), sure.tolist(), familiar, strict=True
        )
    ]


def _title(image: Any, number: int) -> str:
    return str(image) if isinstance(image, (str, Path)) else f"image {number}"


def _origin(weights: str | Path | None, backbone: Backbone | None) -> str:
    return "from scratch" if backbone is None else str(weights)


def _device(name: str | torch.device) -> torch.device:
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device '{name}' cannot be used ({str(error).splitlines()[0]}): take auto, cpu or cuda"
        ) from error
    return device
