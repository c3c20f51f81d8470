"""Run the protocol of few-shot class-incremental learning: who sees which images, and when.

Session 0 shows all images of the base classes. Every later session shows a few images of its own
classes and nothing else; old images never come back. After each session the method scores the test
images of all classes seen so far, shuffled and without labels. It never learns how well it did, so
nothing can be chosen on the test set. integrity.py checks that the method keeps to this.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import CheckpointError, DataError, MethodError
from fewmore.methods.base import FrozenBackbone, Method
from fewmore.research import integrity
from fewmore.research.metrics import Summary, summarize
from fewmore.training.checkpoint import Checkpoint, State, to_cpu
from fewmore.training.distributed import from_first, is_first, world_size
from fewmore.training.runtime import Runtime

TEST_BATCH = 5000  # test images embedded or scored at once
SESSION = "session"  # the name of a finished session in the checkpoint
IMAGES = "images"  # that of the hash of all images, until a session is finished and has it


@dataclass
class Outcome:
    """Hold the predictions of a run so far. Classes are numbered in the order of arrival."""

    labels: Tensor  # (test images,)
    session_of_class: Tensor  # (classes,)
    # By name of the scores, "" being the method's own: (sessions so far, test images); −1 where
    # the class of an image has not arrived.
    predictions: dict[str, Tensor]
    seconds: dict[str, float] = field(default_factory=dict)
    images_kept: list[int] = field(default_factory=list)  # old images held after each session
    # (test images,): the largest probability of the last session's softmax.
    confidence: Tensor = field(default_factory=lambda: torch.empty(0))
    checks: list[str] = field(default_factory=list)  # that the method passed, of integrity.py
    # (test images,): the position of each in the task's test set.
    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    # (test images, classes seen): the method's own scores after the last session, where they were
    # asked for; NaN where the class of an image has not arrived.
    scores: Tensor | None = None

    @property
    def sessions(self) -> int:
        """Return how many sessions were learnt."""
        return len(self.predictions.get("", ()))

    def summary(self, name: str = "") -> Summary:
        """Return all measures of the sessions so far."""
        return summarize(
            self.labels.numpy(), self.session_of_class.numpy(), self.predictions[name].numpy()
        )


def run(
    method: Method,
    task: Task,
    runtime: Runtime,
    on_session: Callable[[Outcome], None] = lambda outcome: None,
    keep_scores: bool = False,
) -> Outcome:
    """Teach a method session after session, and test it after each.

    With `keep_scores` the outcome has the scores of the session at each call of `on_session`.
    """
    split = task.split
    classes = split.seen(len(split.sessions))
    session_of_class = torch.tensor(
        [i for i, session in enumerate(split.sessions) for _ in session.classes]
    )
    test = task.test.select_classes(classes).to(runtime.device)
    outcome = Outcome(test.labels.cpu(), session_of_class, {}, positions=_positions(task, classes))
    if not bool((session_of_class[outcome.labels] == 0).any()):
        raise DataError(f"no test image of {task.benchmark.name} is of a base class: add some")
    evaluator = _Evaluator(method, test, session_of_class.to(runtime.device), keep_scores)
    shown = ""
    if runtime.checkpoint is not None:  # else nothing is compared with it
        shown = _hash_images(task, evaluator.content)
        _check_images(runtime.checkpoint, shown)
        _resume(runtime.checkpoint, method, outcome)
    first, last = outcome.sessions, len(split.sessions) - 1
    for number, session in enumerate(split.sessions):
        if number < outcome.sessions:
            continue
        began = time.monotonic()
        images = session.select_from(task.train).compact().to(runtime.device)
        if number == 0:
            method.fit(images)
        else:
            method.learn(images)
        _follow_first(method)
        learnt = time.monotonic()
        if number in (first, last):
            _add_predictions(outcome, *evaluator.predict_and_check(number))
        else:
            _add_predictions(outcome, *evaluator.predict(number))
        outcome.scores = evaluator.scores
        state = method.state()
        integrity.check_state(method, state)
        outcome.images_kept.append(integrity.check_images_kept(method, state, images))
        outcome.checks[:] = integrity.CHECKS
        _add_seconds(outcome, "fit" if number == 0 else "learn", learnt - began)
        _add_seconds(outcome, "test", time.monotonic() - learnt)
        # Reported before it is saved: a kill in between repeats the report, but never loses it.
        on_session(outcome)
        if runtime.checkpoint is not None:
            _save(runtime.checkpoint, state, outcome, shown)
    return outcome


def _follow_first(method: Method) -> None:
    """Let the method in each of several processes know what it knows in the first.

    Other GPUs may round in other ways, and choose other exemplars by it.
    """
    if world_size() > 1:
        state = from_first(lambda: to_cpu(method.state()))
        if not is_first():
            method.restore(state)


def _positions(task: Task, classes: Sequence[int]) -> Tensor:
    """Return where the test images of these classes are in the task's test set."""
    labels = task.test.labels.cpu()
    return torch.isin(labels, torch.tensor(classes)).nonzero().squeeze(1)


class _Evaluator:
    """Predict the test images, in orders that say nothing about classes and sessions.

    With a frozen backbone the test images of all sessions are embedded at once after the first
    session: were each session's images embedded when its classes arrive, a batch would tell the
    session. The features of classes that have not arrived are scored later.
    """

    def __init__(
        self, method: Method, test: ImageSet, session_of_class: Tensor, keep_scores: bool
    ) -> None:
        self.method = method
        self.test = test
        self.keep_scores = keep_scores
        self.scores: Tensor | None = None  # of the last session, if they are kept
        self.arrival = session_of_class[test.labels]  # the session in which each image's class came
        self.classes_seen = torch.bincount(session_of_class).cumsum(0).tolist()
        self.content = test.content_hash()
        self.features: Tensor | None = None
        self.sample = torch.empty(0, dtype=torch.int64)  # the images to be scored again
        self.sample_scores: dict[int, Tensor] = {}  # their first scores

    def predict_and_check(self, session: int) -> tuple[dict[str, Tensor], Tensor]:
        """Predict all test images after a session, and check how the method does it.

        A sample of them is scored again as a batch of its own, and must get the same scores; and
        the method's state must be as before.
        """
        before = integrity.state_hash(self.method.state())
        seen = (self.arrival <= session).nonzero().squeeze(1)
        self.sample = integrity.sample_of(seen, self._generator("sample", session))
        found = self.predict(session)
        first = torch.stack([self.sample_scores[index] for index in self.sample.tolist()])
        again = []
        for batch in torch.split(self.sample, TEST_BATCH):
            images = _without_labels(self.test.select(batch))
            again.append(self.method.scores(images))
        integrity.check_same_scores(self.method, first, torch.cat(again))
        integrity.check_unchanged(self.method, before)
        self.sample, self.sample_scores = self.sample[:0], {}
        return found

    def predict(self, session: int) -> tuple[dict[str, Tensor], Tensor]:
        """Predict all test images after a session.

        Returns the predicted classes by name of the scores, and the confidence of the method's own
        scores. Where the class of an image has not arrived, they are −1 and 0.
        """
        seen = (self.arrival <= session).nonzero().squeeze(1)
        queries = self._shuffle(seen, "scores", session)
        batches: dict[str, list[Tensor]] = {}
        confidence = torch.zeros(len(self.test), dtype=torch.float16, device=self.test.device)
        if self.keep_scores:
            self.scores = torch.full((len(self.test), self.classes_seen[session]), torch.nan)
        for batch in torch.split(queries, TEST_BATCH):
            for name, scores in self._scores(batch).items():
                self._check_scores(name, scores, len(batch), session)
                batches.setdefault(name, []).append(scores.argmax(1))
                if not name:
                    confidence[batch] = scores.float().softmax(1).amax(1).to(confidence)
                    self._remember(batch, scores)
                    if self.scores is not None:
                        self.scores[batch.cpu()] = scores.float().cpu()
        predictions = {}
        for name, parts in batches.items():
            predicted = torch.full((len(self.test),), -1, device=self.test.device)
            predicted[queries] = torch.cat(parts).to(predicted)
            predictions[name] = predicted.cpu()
        return predictions, confidence.cpu()

    def _scores(self, batch: Tensor) -> dict[str, Tensor]:
        if not isinstance(self.method, FrozenBackbone):
            return {"": self.method.scores(_without_labels(self.test.select(batch)))}
        if self.features is None:
            self.features = self._embed(self.method)
        features = self.features[batch]
        return {"": self.method.scores_of(features), **self.method.also_scores_of(features)}

    def _embed(self, method: FrozenBackbone) -> Tensor:
        """Return the features of all test images, computed in one order and in fixed blocks.

        A resumed run computes in the same blocks, and so gets the same bits.
        """
        everything = torch.arange(len(self.test), device=self.test.device)
        order = self._shuffle(everything, "embed")
        blocks = []
        for block in torch.split(order, TEST_BATCH):
            features = method.embed(_without_labels(self.test.select(block)))
            if features.dim() != 2 or len(features) != len(block):
                raise MethodError(
                    f"{type(method).__name__} must give features of shape ({len(block)}, d), "
                    f"images × d, not {tuple(features.shape)}"
                )
            blocks.append(features)
        shuffled = torch.cat(blocks)
        features = torch.empty_like(shuffled)
        features[order] = shuffled
        return features

    def _remember(self, batch: Tensor, scores: Tensor) -> None:
        """Remember the scores of the images that will be scored again."""
        chosen = torch.isin(batch, self.sample.to(batch)).nonzero().squeeze(1)
        rows = scores[chosen]
        self.sample_scores.update(zip(batch[chosen].tolist(), rows, strict=True))

    def _shuffle(self, indices: Tensor, *purpose: object) -> Tensor:
        """Return indices in an order that says nothing about classes; test sets are often sorted.

        The order depends on the run and on the test set, labels included, so a method cannot know
        it; the same run, resumed or not, always has the same.
        """
        order = torch.randperm(len(indices), generator=self._generator(*purpose))
        return indices[order.to(indices.device)]

    def _generator(self, *purpose: object) -> torch.Generator:
        return integrity.generator(self.content, self.method.seed, *purpose)

    def _check_scores(self, name: str, scores: Tensor, images: int, session: int) -> None:
        classes = self.classes_seen[session]
        method = type(self.method).__name__ + (f" ({name})" if name else "")
        if not isinstance(scores, Tensor):
            raise MethodError(
                f"{method} must give scores as a tensor, not as {type(scores).__name__}"
            )
        if tuple(scores.shape) != (images, classes):
            raise MethodError(
                f"{method} must give scores of shape {(images, classes)}, images × classes seen, "
                f"not {tuple(scores.shape)}"
            )
        wrong = scores.numel() - int(torch.isfinite(scores).sum())
        if wrong:
            raise MethodError(
                f"{method} gave scores that are not finite numbers after session {session}: "
                f"{wrong:,} of {scores.numel():,}; look for a division by 0, as of a vector by its "
                "length, a logarithm of 0, a class without images, or weights that grew too large"
            )


def _without_labels(images: ImageSet) -> ImageSet:
    """Return the images with neither their labels nor other images of the same storage."""
    copy = images.compact()
    return ImageSet.from_images(copy.storage, torch.zeros_like(copy.labels), ("?",))


def _add_predictions(outcome: Outcome, predictions: dict[str, Tensor], confidence: Tensor) -> None:
    """Add a session's predictions to those of the sessions before."""
    images = len(outcome.labels)
    if outcome.predictions and outcome.predictions.keys() != predictions.keys():
        old, new = (sorted(map(repr, each)) for each in (outcome.predictions, predictions))
        raise MethodError(
            f"also_scores_of must give the same scores after every session, by name: it gave "
            f"{', '.join(new)} where it gave {', '.join(old)} ('' are the scores themselves)"
        )
    for name, predicted in predictions.items():
        before = outcome.predictions.get(name, torch.empty(0, images, dtype=torch.int64))
        outcome.predictions[name] = torch.cat([before, predicted[None]])
    outcome.confidence = confidence


def _add_seconds(outcome: Outcome, name: str, seconds: float) -> None:
    outcome.seconds[name] = round(outcome.seconds.get(name, 0.0) + seconds, 3)


def _hash_images(task: Task, test: str) -> str:
    """Hash the content of all images, and which training images the sessions show."""
    digest = hashlib.sha256(repr((test, task.train.content_hash())).encode())
    for session in task.split.sessions:
        digest.update(repr((session.classes, session.indices.tolist())).encode())
    return digest.hexdigest()


def _save(checkpoint: Checkpoint, method_state: State, outcome: Outcome, shown: str) -> None:
    state = {
        "predictions": dict(outcome.predictions),
        "seconds": dict(outcome.seconds),
        "method": method_state,
        "images_kept": list(outcome.images_kept),
        "confidence": outcome.confidence,
        "checks": list(outcome.checks),
        "images": shown,
    }
    checkpoint.replace(SESSION, state)


def sessions_learnt(checkpoint: Checkpoint | None) -> int:
    """Return how many sessions a checkpoint holds."""
    state = None if checkpoint is None else checkpoint.load(SESSION)
    return 0 if state is None else len(state["predictions"][""])


def _check_images(checkpoint: Checkpoint, shown: str) -> None:
    """Refuse a checkpoint of other images, and note in a new one which they are."""
    known = checkpoint.load(SESSION) or checkpoint.load(IMAGES)
    if known is None:
        checkpoint.note(IMAGES, {"images": shown})
    elif known.get("images", shown) != shown:  # an older file has none
        raise CheckpointError(
            f"{checkpoint.path} is of a run that began with other images, and its numbers would be "
            "of both: put back the images of then, or run again without --resume"
        )


def _resume(checkpoint: Checkpoint, method: Method, outcome: Outcome) -> None:
    state = checkpoint.load(SESSION)
    if state is None:
        return
    method.restore(state["method"])
    outcome.predictions.update(state["predictions"])
    outcome.seconds.update(state["seconds"])
    # "pictures_kept" is the key from before the first release.
    outcome.images_kept.extend(state.get("images_kept") or state.get("pictures_kept", ()))
    outcome.confidence = state.get("confidence", outcome.confidence)  # an older file has none
    outcome.checks.extend(state.get("checks", ()))


def session_sizes(task: Task) -> list[tuple[int, int]]:
    """Return, for each session, the classes seen so far and the test images of them."""
    counts = np.bincount(task.test.labels.cpu().numpy(), minlength=len(task.test.class_names))
    return [
        (len(seen), int(counts[list(seen)].sum()))
        for seen in map(task.split.seen, range(len(task.split.sessions)))
    ]
