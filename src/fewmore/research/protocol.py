"""The honest protocol: the only place that knows who sees what, and when.

Session 0 shows all images of the base classes. Every later session shows a few images of its own classes and nothing
else; old images never come back. After each session the method scores the test images of all classes seen so far, in
an order that says nothing and without their labels. It is told nothing about how well it did, so nothing can be chosen
on the test set.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import MethodError
from fewmore.methods.base import FrozenBackbone, Method
from fewmore.research.metrics import Summary, summarise
from fewmore.training.checkpoint import Checkpoint, State
from fewmore.training.loop import Runtime

PART = 5000  # test images scored at once
SESSION = "session"  # the checkpoint's name for what was reached


@dataclass
class Outcome:
    """What a run has answered so far. Classes are numbered in the order they came."""

    labels: Tensor  # (test images,)
    session_of_class: Tensor  # (classes,)
    predictions: dict[
        str, Tensor
    ]  # (sessions so far, test images), −1 for classes not seen yet; "" is the method's own
    seconds: dict[str, float] = field(default_factory=dict)
    images_kept: list[int] = field(
        default_factory=list
    )  # old images that the method held after each session
    confidence: Tensor = field(
        default_factory=lambda: torch.empty(0)
    )  # (test images,) in the last answers: a softmax's largest share

    @property
    def sessions(self) -> int:
        """How many sessions were learnt."""
        return len(self.predictions.get("", ()))

    def summary(self, name: str = "") -> Summary:
        """All measures of the sessions so far."""
        return summarise(
            self.labels.numpy(), self.session_of_class.numpy(), self.predictions[name].numpy()
        )


def run(
    method: Method,
    task: Task,
    runtime: Runtime,
    on_session: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Show a method session after session, and ask it after each."""
    split = task.split
    classes = split.seen(len(split.sessions))
    session_of_class = torch.tensor(
        [i for i, session in enumerate(split.sessions) for _ in session.classes]
    )
    test = task.test.only(classes).to(runtime.device)
    outcome = Outcome(test.labels.cpu(), session_of_class, {})
    _resume(runtime.checkpoint, method, outcome)
    exam = _Exam(method, test, session_of_class.to(runtime.device))
    for number, session in enumerate(split.sessions):
        if number < outcome.sessions:
            continue
        began = time.monotonic()
        shown = session.of(task.train).compact().to(runtime.device)
        if number == 0:
            method.fit(shown)
        else:
            method.learn(shown)
        learnt = time.monotonic()
        answers, outcome.confidence = exam.answers(number)
        for name, predicted in answers.items():
            before = outcome.predictions.get(name, torch.empty(0, len(test), dtype=torch.int64))
            outcome.predictions[name] = torch.cat([before, predicted[None]])
        outcome.images_kept.append(method.images_kept())
        _add(outcome.seconds, "fit" if number == 0 else "learn", learnt - began)
        _add(outcome.seconds, "test", time.monotonic() - learnt)
        on_session(
            outcome
        )  # told before it is saved: a kill in between tells it twice, the other way round never
        if runtime.checkpoint is not None:
            reached: State = {
                "predictions": dict(outcome.predictions),
                "seconds": dict(outcome.seconds),
                "method": method.state(),
            }
            kept = {"images_kept": list(outcome.images_kept), "confidence": outcome.confidence}
            runtime.checkpoint.replace(SESSION, {**reached, **kept})
    return outcome


class _Exam:
    """Test images and answers. Where the features are frozen, every test image is embedded once in a run."""

    def __init__(self, method: Method, test: ImageSet, session_of_class: Tensor) -> None:
        self.method, self.test = method, test
        self.arrival = session_of_class[test.labels]  # when an image's class is first seen
        self.classes = torch.bincount(session_of_class).cumsum(0).tolist()
        self.features: Tensor | None = None
        self.embedded = 0  # sessions whose test images were embedded

    def answers(self, session: int) -> tuple[dict[str, Tensor], Tensor]:
        """After a session: the predicted class of each test image, by name of the scores, and the confidence in the method's own.

        Where an image's class was not seen yet the class is −1 and the confidence 0.
        """
        asked = self._shuffled(self.arrival <= session)
        found: dict[str, list[Tensor]] = {}
        confidence = torch.zeros(len(self.test), dtype=torch.float16, device=self.test.device)
        for part in torch.split(asked, PART):
            for name, scores in self._scores(part, session).items():
                self._check(name, scores, len(part), self.classes[session])
                found.setdefault(name, []).append(scores.argmax(1))
                if not name:
                    confidence[part] = scores.float().softmax(1).amax(1).to(confidence)
        answers = {}
        for name, parts in found.items():
            predicted = torch.full((len(self.test),), -1, device=self.test.device)
            predicted[asked] = torch.cat(parts).to(predicted)
            answers[name] = predicted.cpu()
        return answers, confidence.cpu()

    def _scores(self, part: Tensor, session: int) -> dict[str, Tensor]:
        if not isinstance(self.method, FrozenBackbone):
            return {"": self.method.scores(_unlabelled(self.test.select(part)))}
        features = self._features(session)[part]
        return {"": self.method.scores_of(features), **self.method.also_scores_of(features)}

    def _features(self, session: int) -> Tensor:
        if not isinstance(self.method, FrozenBackbone):
            raise MethodError("only a method with a frozen backbone has features")
        while (
            self.embedded <= session
        ):  # one session's images at a time: a resumed run computes in the same batches
            new = self._shuffled(self.arrival == self.embedded)
            fresh = self.method.embed(_unlabelled(self.test.select(new)))
            if fresh.dim() != 2 or len(fresh) != len(new):
                raise MethodError(
                    f"{type(self.method).__name__} must give features of shape ({len(new)}, d), images × d, not {tuple(fresh.shape)}"
                )
            if self.features is None:
                self.features = torch.zeros(
                    len(self.test), fresh.shape[1], dtype=fresh.dtype, device=fresh.device
                )
            self.features[new] = fresh
            self.embedded += 1
        if self.features is None:
            raise MethodError("no session was learnt yet")
        return self.features

    @staticmethod
    def _shuffled(chosen: Tensor) -> Tensor:
        """The chosen positions in a random order, always the same: test sets are often sorted by class."""
        order = torch.randperm(int(chosen.sum()), generator=torch.Generator().manual_seed(0))
        return chosen.nonzero().squeeze(1)[order.to(chosen.device)]

    def _check(self, name: str, scores: Tensor, images: int, classes: int) -> None:
        method = type(self.method).__name__ + (f" ({name})" if name else "")
        if not isinstance(scores, Tensor):
            raise MethodError(
                f"{method} must give scores as a tensor, not as {type(scores).__name__}"
            )
        if tuple(scores.shape) != (images, classes):
            raise MethodError(
                f"{method} must give scores of shape {(images, classes)}, images × classes seen, not {tuple(scores.shape)}"
            )
        if not bool(torch.isfinite(scores).all()):
            raise MethodError(f"{method} gave scores that are not finite numbers")


def _unlabelled(images: ImageSet) -> ImageSet:
    """The images alone: neither what they show, nor any other image of their storage."""
    own = images.compact()
    return ImageSet.of(own.storage, torch.zeros_like(own.labels), ("?",))


def _resume(checkpoint: Checkpoint | None, method: Method, outcome: Outcome) -> None:
    state = None if checkpoint is None else checkpoint.load(SESSION)
    if state is not None:
        method.restore(state["method"])
        outcome.predictions.update(state["predictions"])
        outcome.seconds.update(state["seconds"])
        outcome.images_kept.extend(state["images_kept"])
        outcome.confidence = state.get(
            "confidence", outcome.confidence
        )  # an older checkpoint has none


def _add(seconds: dict[str, float], name: str, more: float) -> None:
    seconds[name] = round(seconds.get(name, 0.0) + more, 3)


def session_sizes(task: Task) -> list[tuple[int, int]]:
    """After each session: classes seen so far, and test images of them."""
    counts = np.bincount(task.test.labels.cpu().numpy(), minlength=len(task.test.class_names))
    return [
        (len(seen), int(counts[list(seen)].sum()))
        for seen in map(task.split.seen, range(len(task.split.sessions)))
    ]
