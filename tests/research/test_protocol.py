"""The protocol shows each method its own session and nothing else, and tells it nothing."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet, Ragged
from fewmore.data.splits import draw
from fewmore.errors import MethodError
from fewmore.methods.base import FrozenBackbone, Method
from fewmore.research import protocol
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.loop import Runtime


def pixels(images: ImageSet) -> list[bytes]:
    """Every image of a set."""
    return [images.image(i).numpy().tobytes() for i in range(len(images))]


def stored(images: ImageSet) -> list[bytes]:
    """Every image of the storage below a set, whether the set shows it or not."""
    storage = images.storage
    if isinstance(storage, Tensor):
        # Below a tensor there may be a larger one: all of its memory counts.
        assert storage.untyped_storage().nbytes() == storage.numel()
        return [image.numpy().tobytes() for image in storage]
    assert storage.buffer.untyped_storage().nbytes() == int(
        (3 * storage.heights * storage.widths).sum()
    )
    return [storage.image(row).numpy().tobytes() for row in range(len(storage))]


def named(images: ImageSet) -> Counter[tuple[str, bytes]]:
    """Every image with the name of its class."""
    return Counter(zip([images.class_names[c] for c in images.labels], pixels(images), strict=True))


class PixelMeans:
    """Classes as the mean of one pixel's colour: no training, and wrong often enough to be interesting."""

    def __init__(self) -> None:
        self.means = torch.empty(0, 2)
        self.learnt: list[ImageSet] = []
        self.asked: list[list[ImageSet]] = []

    def look(self, images: ImageSet) -> Tensor:
        return torch.stack([images.image(i)[:2, 0, 0].float() for i in range(len(images))])

    def add(self, session: ImageSet) -> None:
        self.learnt.append(session)
        self.asked.append([])
        features = self.look(session)
        self.means = torch.cat(
            [
                self.means,
                *(
                    features[session.labels == c].mean(0)[None]
                    for c in range(len(session.class_names))
                ),
            ]
        )

    def compare(self, features: Tensor) -> Tensor:
        return -torch.cdist(features, self.means)

    def state(self) -> dict[str, object]:
        return {"means": self.means}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.means = state["means"]


class Watched:
    """What the spies share: they remember every set of images that they are shown."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(None, Runtime(), seed)
        self.inner = PixelMeans()

    def fit(self, base: ImageSet) -> None:
        self.inner.add(base)

    def learn(self, session: ImageSet) -> None:
        self.inner.add(session)

    def state(self):
        return self.inner.state()

    def restore(self, state) -> None:
        self.inner.restore(state)
        self.inner.asked.append([])


class Spy(Watched, Method):
    """Looks at images whenever it is asked."""

    def scores(self, images: ImageSet) -> Tensor:
        self.inner.asked[-1].append(images)
        return self.inner.compare(self.inner.look(images))


class FrozenSpy(Watched, FrozenBackbone):
    """The same with features that are asked for apart."""

    def embed(self, images: ImageSet) -> Tensor:
        self.inner.asked[-1].append(images)
        return self.inner.look(images)

    def scores_of(self, features: Tensor) -> Tensor:
        return self.inner.compare(features)

    def also_scores_of(self, features: Tensor) -> dict[str, Tensor]:
        return {"worst": -self.inner.compare(features)}


SPIES = pytest.mark.parametrize("spy", [Spy, FrozenSpy])


def ragged(images: ImageSet) -> ImageSet:
    """The same images, but each with some rows less."""
    arrays = [images.image(i)[:, : 5 + i % 3].contiguous().numpy() for i in range(len(images))]
    return ImageSet.of(Ragged.from_arrays(arrays), images.labels, images.class_names)


@pytest.fixture(params=["one size", "several sizes"])
def task(request, tiny_task) -> Task:
    """Classes in a shuffled order, so that their numbers in the run are not those in the data."""
    train, test = tiny_task.train, tiny_task.test
    if request.param == "several sizes":
        train, test = ragged(train), ragged(test)
    assert max(Counter(pixels(train) + pixels(test)).values()) == 1, (
        "each image must be recognisable"
    )
    return replace(tiny_task, train=train, test=test, split=draw(train, 4, 2, 3, order=7))


@SPIES
def test_each_session_shows_its_own_images_and_nothing_else(spy, task):
    method = spy()
    protocol.run(method, task, Runtime())
    assert len(method.inner.learnt) == len(task.split.sessions)
    test = set(pixels(task.test))
    old: set[bytes] = set()
    for shown, session in zip(method.inner.learnt, task.split.sessions, strict=True):
        names = task.train.class_names
        expected = Counter(
            (names[task.train.labels[i]], task.train.image(int(i)).numpy().tobytes())
            for i in session.images
        )
        assert named(shown) == expected
        assert shown.class_names == tuple(names[c] for c in session.classes)
        below = stored(shown)
        assert Counter(below) == Counter(pixels(shown)), "the storage holds other images"
        assert not set(below) & old, "an old image came back"
        assert not set(below) & test, "a test image was shown"
        old |= set(below)


@SPIES
def test_only_test_images_of_seen_classes_are_asked_for(spy, task):
    method = spy()
    protocol.run(method, task, Runtime())
    before: Counter[bytes] = Counter()
    for number, asked in enumerate(method.inner.asked):
        seen = task.test.only(task.split.seen(number))
        there = Counter(image for images in asked for image in pixels(images))
        assert Counter(image for images in asked for image in stored(images)) == there, (
            "the storage holds other images"
        )
        if spy is FrozenSpy:  # asks for each image once in a run
            there += before
            before = there
        assert there == Counter(pixels(seen))


@SPIES
def test_nothing_says_what_a_test_image_shows(spy, task):
    method = spy()
    protocol.run(method, task, Runtime())
    label = dict(zip(pixels(task.test), task.test.labels.tolist(), strict=True))
    assert sorted(task.test.labels.tolist()) == task.test.labels.tolist(), (
        "this set is sorted by class"
    )
    for asked in method.inner.asked:
        for images in asked:
            assert images.labels.unique().tolist() == [0]
            assert images.class_names == ("?",)
            order = [label[image] for image in pixels(images)]
            assert len(set(order)) == 1 or order != sorted(order), (
                "the order gives the classes away"
            )


@SPIES
def test_accuracy_is_what_a_naive_count_gives(spy, task):
    method, naive, spoken = spy(), [], []

    def on_session(outcome: protocol.Outcome) -> None:
        seen = [task.train.class_names[c] for c in task.split.seen(outcome.sessions - 1)]
        right, count = 0, 0
        for i in range(len(task.test)):
            name = task.test.class_names[task.test.labels[i]]
            if name in seen:
                features = method.inner.look(task.test.select(torch.tensor([i])))
                right += seen[int(method.inner.compare(features)[0].argmax())] == name
                count += 1
        naive.append(100 * right / count)
        spoken.append(outcome.summary().accuracy.tolist())

    outcome = protocol.run(method, task, Runtime(), on_session)
    assert outcome.summary().accuracy.tolist() == pytest.approx(naive)
    assert [len(accuracies) for accuracies in spoken] == [1, 2, 3]
    assert 30 < naive[-1] < 100, "neither all right nor all wrong, or this says little"
    assert set(outcome.predictions) == ({"", "worst"} if spy is FrozenSpy else {""})
    assert set(outcome.seconds) == {"fit", "learn", "test"}


@SPIES
def test_classes_that_were_not_seen_have_no_prediction(spy, task):
    outcome = protocol.run(spy(), task, Runtime())
    arrival = outcome.session_of_class[outcome.labels]
    assert outcome.session_of_class.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    for session, row in enumerate(outcome.predictions[""]):
        assert ((row == -1) == (arrival > session)).all()
        assert row.max() < [4, 6, 8][session]
    names = [task.test.class_names[c] for c in task.split.seen(2)]
    assert [names[c] for c in outcome.labels] == [
        task.test.class_names[c] for c in task.test.labels
    ]


@SPIES
def test_many_test_images_are_scored_in_parts(spy, task, monkeypatch):
    expected = protocol.run(spy(), task, Runtime()).predictions
    monkeypatch.setattr(protocol, "PART", 7)
    method = spy()
    found = protocol.run(method, task, Runtime()).predictions
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    if spy is Spy:
        assert max(len(images) for asked in method.inner.asked for images in asked) == 7


class Stopped(Exception):
    """Stands for a kill."""


@SPIES
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_stopped_run_goes_on_after_the_last_session_it_saved(spy, at, task, tmp_path):
    expected = protocol.run(spy(), task, Runtime())

    def stop(outcome: protocol.Outcome) -> None:
        if outcome.sessions == at:
            raise Stopped

    with pytest.raises(Stopped):
        protocol.run(spy(), task, Runtime(checkpoint=Checkpoint(tmp_path / "file")), stop)
    method, told = spy(), []
    outcome = protocol.run(
        method,
        task,
        Runtime(checkpoint=Checkpoint(tmp_path / "file")),
        lambda o: told.append(o.sessions),
    )
    # A session is told and then saved, so the one at which it was stopped is learnt and told again.
    assert told == list(range(at, 4))
    assert len(method.inner.learnt) == 4 - at
    assert outcome.predictions.keys() == expected.predictions.keys()
    assert all(
        torch.equal(outcome.predictions[name], expected.predictions[name])
        for name in expected.predictions
    )
    assert outcome.summary().accuracy.tolist() == expected.summary().accuracy.tolist()
    assert set(outcome.seconds) >= ({"fit", "test"} if at > 1 else {"fit", "learn", "test"})


def test_a_finished_run_is_not_run_again(task, tmp_path):
    expected = protocol.run(Spy(), task, Runtime(checkpoint=Checkpoint(tmp_path / "file")))
    method = Spy()
    outcome = protocol.run(method, task, Runtime(checkpoint=Checkpoint(tmp_path / "file")))
    assert method.inner.learnt == []
    assert torch.equal(outcome.predictions[""], expected.predictions[""])


def breaking(spy: type, how) -> Method:
    """A spy whose scores are changed."""
    method = spy()
    compare = method.inner.compare
    method.inner.compare = lambda features: how(compare(features))
    return method


@SPIES
@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        (
            lambda scores: scores[:, :-1],
            r"must give scores of shape \(20, 4\), images × classes seen, not \(20, 3\)",
        ),
        (lambda scores: torch.cat([scores, scores], 1), r"not \(20, 8\)"),
        (lambda scores: scores[1:], r"not \(19, 4\)"),
        (lambda scores: scores.argmax(1), r"not \(20,\)"),
        (lambda scores: scores * float("nan"), "not finite"),
        (lambda scores: scores.masked_fill(torch.eye(20, 4).bool(), float("inf")), "not finite"),
        (lambda scores: np.asarray(scores), "as a tensor, not as ndarray"),
    ],
    ids=["a class less", "classes twice", "an image less", "answers", "NaN", "infinity", "array"],
)
def test_scores_that_cannot_be_are_refused(spy, how, complaint, tiny_task):
    with pytest.raises(MethodError, match=f"{spy.__name__} .*{complaint}"):
        protocol.run(breaking(spy, how), tiny_task, Runtime())


def test_other_scores_are_checked_and_named(tiny_task):
    method = FrozenSpy()
    method.also_scores_of = lambda features: {"second": torch.zeros(3, 3)}
    with pytest.raises(
        MethodError, match=r"FrozenSpy \(second\) must give scores of shape \(20, 4\)"
    ):
        protocol.run(method, tiny_task, Runtime())


@pytest.mark.parametrize(
    "how", [lambda f: f[:-1], lambda f: f[0], lambda f: f[None]], ids=["too few", "flat", "deep"]
)
def test_features_that_cannot_be_are_refused(how, tiny_task):
    method = FrozenSpy()
    method.embed = lambda images: how(method.inner.look(images))
    with pytest.raises(MethodError, match=r"FrozenSpy must give features of shape \(20, d\)"):
        protocol.run(method, tiny_task, Runtime())


def test_session_sizes(task):
    assert protocol.session_sizes(task) == [(4, 20), (6, 30), (8, 40)]
