"""Test that a method sees its own session and nothing else, and never learns how well it did."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet, Ragged
from fewmore.data.splits import sample_split
from fewmore.errors import DataError, MethodError
from fewmore.methods.base import FrozenBackbone, Method, Recipe
from fewmore.research import protocol
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.runtime import Runtime

RECIPE = Recipe("spy", "none", Transform(8, (0.5,) * 3, (0.5,) * 3, "pad"))


def pixels(images: ImageSet) -> list[bytes]:
    """Return the bytes of every image of a set."""
    return [images.image(i).numpy().tobytes() for i in range(len(images))]


def stored(images: ImageSet) -> list[bytes]:
    """Return every image of the storage below a set, whether the set shows it or not."""
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
    """Count every image with the name of its class."""
    return Counter(zip([images.class_names[c] for c in images.labels], pixels(images), strict=True))


class Records:
    """Hold what a spy saw; in slots, where the count of the images that a method keeps is blind."""

    __slots__ = ("learnt", "queries")

    def __init__(self) -> None:
        self.learnt: list[ImageSet] = []
        self.queries: list[list[ImageSet]] = []


class PixelMeans:
    """Classify by the mean color of one pixel: no training, and some errors."""

    def __init__(self) -> None:
        self.means = torch.empty(0, 2)
        self.records = Records()

    @property
    def learnt(self) -> list[ImageSet]:
        return self.records.learnt

    @property
    def queries(self) -> list[list[ImageSet]]:
        return self.records.queries

    def features(self, images: ImageSet) -> Tensor:
        return torch.stack([images.image(i)[:2, 0, 0].float() for i in range(len(images))])

    def add(self, session: ImageSet) -> None:
        self.learnt.append(session)
        self.queries.append([])
        features = self.features(session)
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
    """Remember every set of images that a method sees."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(RECIPE, Runtime(), seed)
        self.inner = PixelMeans()

    def fit(self, base: ImageSet) -> None:
        self.inner.add(base)

    def learn(self, session: ImageSet) -> None:
        self.inner.add(session)

    def state(self):
        return self.inner.state()

    def restore(self, state) -> None:
        self.inner.restore(state)
        self.inner.queries.append([])


class Spy(Watched, Method):
    """Look at images at every prediction."""

    def scores(self, images: ImageSet) -> Tensor:
        self.inner.queries[-1].append(images)
        return self.inner.compare(self.inner.features(images))


class FrozenSpy(Watched, FrozenBackbone):
    """Embed images first and score the features later."""

    def embed(self, images: ImageSet) -> Tensor:
        self.inner.queries[-1].append(images)
        return self.inner.features(images)

    def scores_of(self, features: Tensor) -> Tensor:
        return self.inner.compare(features)

    def also_scores_of(self, features: Tensor) -> dict[str, Tensor]:
        return {"worst": -self.inner.compare(features)}


SPIES = pytest.mark.parametrize("spy", [Spy, FrozenSpy])


def ragged(images: ImageSet) -> ImageSet:
    """Return the images in several sizes: each lacks some rows of pixels."""
    arrays = [images.image(i)[:, : 5 + i % 3].contiguous().numpy() for i in range(len(images))]
    return ImageSet.from_images(Ragged.from_arrays(arrays), images.labels, images.class_names)


@pytest.fixture(params=["one size", "several sizes"])
def task(request, tiny_task) -> Task:
    """Return a task with shuffled classes, whose numbers in the run differ from the labels."""
    train, test = tiny_task.train, tiny_task.test
    if request.param == "several sizes":
        train, test = ragged(train), ragged(test)
    assert max(Counter(pixels(train) + pixels(test)).values()) == 1, (
        "each image must be recognisable"
    )
    return replace(tiny_task, train=train, test=test, split=sample_split(train, 4, 2, 3, order=7))


@SPIES
def test_each_session_shows_its_own_images_and_nothing_else(spy, task):
    method = spy()
    protocol.run(method, task, Runtime())
    assert len(method.inner.learnt) == len(task.split.sessions)
    test = set(pixels(task.test))
    old: set[bytes] = set()
    for images, session in zip(method.inner.learnt, task.split.sessions, strict=True):
        names = task.train.class_names
        expected = Counter(
            (names[task.train.labels[i]], task.train.image(int(i)).numpy().tobytes())
            for i in session.indices
        )
        assert named(images) == expected
        assert images.class_names == tuple(names[c] for c in session.classes)
        storage = stored(images)
        assert Counter(storage) == Counter(pixels(images)), "the storage holds other images"
        assert not set(storage) & old, "an old image came back"
        assert not set(storage) & test, "a test image was shown"
        old |= set(storage)


def test_only_test_images_of_seen_classes_are_queries(task):
    method = Spy()
    protocol.run(method, task, Runtime())
    for number, queries in enumerate(method.inner.queries):
        seen = task.test.select_classes(task.split.seen(number))
        for images in queries:
            assert stored(images) == pixels(images), "the storage holds other images"
        if number != 1:  # the first and the last session end with a check
            *queries, sample = queries
            assert not Counter(pixels(sample)) - Counter(pixels(seen))
            assert 0 < len(sample) <= len(seen) // 2
        assert Counter(image for images in queries for image in pixels(images)) == Counter(
            pixels(seen)
        )


@pytest.mark.parametrize("block", [7, 5000])
def test_a_frozen_backbone_embeds_the_images_of_all_sessions_in_one_order(block, task, monkeypatch):
    monkeypatch.setattr(protocol, "TEST_BATCH", block)
    method = FrozenSpy()
    protocol.run(method, task, Runtime())
    label = dict(zip(pixels(task.test), task.test.labels.tolist(), strict=True))
    first, second, third = method.inner.queries
    blocks = -(-len(task.test) // block)
    embedded, sample = first[:blocks], first[blocks:]
    assert Counter(image for images in embedded for image in pixels(images)) == Counter(
        pixels(task.test)
    ), "each image once in a run"
    assert [len(images) for images in embedded[:-1]] == [block] * (blocks - 1)
    for images in embedded:
        assert stored(images) == pixels(images), "the storage holds other images"
    session_of = {c: i for i, one in enumerate(task.split.sessions) for c in one.classes}
    tags = [session_of[label[image]] for image in pixels(embedded[0])]
    assert len(set(tags)) > 1, "a block of one session tells the session"
    assert tags not in (sorted(tags), sorted(tags, reverse=True))
    # The checks of the first and the last session embed a sample again.
    for images, number in [(sample, 0), (third, 2)]:
        seen = task.test.select_classes(task.split.seen(number))
        again = Counter(image for part in images for image in pixels(part))
        assert again
        assert not again - Counter(pixels(seen)), "no sample of later sessions"
    assert second == []


@SPIES
def test_the_order_depends_on_the_run_and_on_the_test_set(spy, task):
    def order(seed: int, task: Task) -> list[bytes]:
        method = spy(seed)
        protocol.run(method, task, Runtime())
        return [
            image for queries in method.inner.queries for part in queries for image in pixels(part)
        ]

    assert order(0, task) == order(0, task)
    assert order(0, task) != order(1, task)
    # Other labels, the same images: the order cannot be computed from what a method is shown.
    names = tuple(reversed(task.test.class_names))
    other = replace(task, test=replace(task.test, class_names=names))
    assert order(0, task) != order(0, other)


@SPIES
def test_nothing_says_what_a_test_image_shows(spy, task):
    method = spy()
    protocol.run(method, task, Runtime())
    label = dict(zip(pixels(task.test), task.test.labels.tolist(), strict=True))
    assert sorted(task.test.labels.tolist()) == task.test.labels.tolist(), (
        "this set is sorted by class"
    )
    for queries in method.inner.queries:
        for images in queries:
            assert images.labels.unique().tolist() == [0]
            assert images.class_names == ("?",)
            order = [label[image] for image in pixels(images)]
            assert len(set(order)) > 1, "the batch gives the class away"
            assert order != sorted(order), "the order gives the classes away"


@SPIES
def test_accuracy_is_what_a_naive_count_gives(spy, task):
    method = spy()
    naive = []
    reported = []

    def on_session(outcome: protocol.Outcome) -> None:
        seen = [task.train.class_names[c] for c in task.split.seen(outcome.sessions - 1)]
        right, count = 0, 0
        for i in range(len(task.test)):
            name = task.test.class_names[task.test.labels[i]]
            if name in seen:
                features = method.inner.features(task.test.select(torch.tensor([i])))
                right += seen[int(method.inner.compare(features)[0].argmax())] == name
                count += 1
        naive.append(100 * right / count)
        reported.append(outcome.summary().accuracy.tolist())

    outcome = protocol.run(method, task, Runtime(), on_session)
    assert outcome.summary().accuracy.tolist() == pytest.approx(naive)
    assert [len(accuracies) for accuracies in reported] == [1, 2, 3]
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
def test_many_test_images_are_scored_in_batches(spy, task, monkeypatch):
    expected = protocol.run(spy(), task, Runtime()).predictions
    monkeypatch.setattr(protocol, "TEST_BATCH", 7)
    method = spy()
    found = protocol.run(method, task, Runtime()).predictions
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    if spy is Spy:
        assert max(len(images) for queries in method.inner.queries for images in queries) == 7


class Stopped(Exception):
    """Stand for a kill."""


@SPIES
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_stopped_run_goes_on_after_the_last_session_it_saved(spy, at, task, tmp_path):
    whole = spy()
    expected = protocol.run(whole, task, Runtime())

    def stop(outcome: protocol.Outcome) -> None:
        if outcome.sessions == at:
            raise Stopped

    with pytest.raises(Stopped):
        protocol.run(spy(), task, Runtime(checkpoint=Checkpoint(tmp_path / "file")), stop)
    method = spy()
    reported = []
    outcome = protocol.run(
        method,
        task,
        Runtime(checkpoint=Checkpoint(tmp_path / "file")),
        lambda o: reported.append(o.sessions),
    )
    # A session is reported and then saved, so the one at which it stopped is learnt again.
    assert reported == list(range(at, 4))
    assert len(method.inner.learnt) == 4 - at
    assert outcome.predictions.keys() == expected.predictions.keys()
    assert all(
        torch.equal(outcome.predictions[name], expected.predictions[name])
        for name in expected.predictions
    )
    assert outcome.summary().accuracy.tolist() == expected.summary().accuracy.tolist()
    assert set(outcome.seconds) >= ({"fit", "test"} if at > 1 else {"fit", "learn", "test"})
    if spy is FrozenSpy:  # its features are computed anew, in the same batches
        first = next(filter(None, method.inner.queries))
        assert pixels(first[0]) == pixels(whole.inner.queries[0][0])


def test_a_finished_run_is_not_run_again(task, tmp_path):
    expected = protocol.run(Spy(), task, Runtime(checkpoint=Checkpoint(tmp_path / "file")))
    method = Spy()
    outcome = protocol.run(method, task, Runtime(checkpoint=Checkpoint(tmp_path / "file")))
    assert method.inner.learnt == []
    assert torch.equal(outcome.predictions[""], expected.predictions[""])


def test_a_checkpoint_from_before_the_first_release_is_resumed(task, tmp_path):
    class Keeping(Spy):
        def images_kept(self) -> int:
            return len(self.inner.means)

    path = tmp_path / "file"
    expected = protocol.run(Keeping(), task, Runtime(checkpoint=Checkpoint(path)))
    checkpoint = Checkpoint(path)
    state = checkpoint.load(protocol.SESSION)
    state["pictures_kept"] = state.pop("images_kept")  # its key at the time
    del state["confidence"]  # an even older file has none
    checkpoint.replace(protocol.SESSION, state)
    method = Keeping()
    outcome = protocol.run(method, task, Runtime(checkpoint=Checkpoint(path)))
    assert method.inner.learnt == []
    assert outcome.images_kept == expected.images_kept == [4, 6, 8]


def breaking(spy: type, how) -> Method:
    """Return a spy whose scores are changed."""
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
            r"shape \(20, 4\).*not \(20, 3\)",
        ),
        (lambda scores: torch.cat([scores, scores], 1), r"not \(20, 8\)"),
        (lambda scores: scores[1:], r"not \(19, 4\)"),
        (lambda scores: scores.argmax(1), r"not \(20,\)"),
        (
            lambda scores: scores * float("nan"),
            "not finite numbers after session 0: 80 of 80; look",
        ),
        (lambda scores: scores.masked_fill(torch.eye(20, 4).bool(), float("inf")), "0: 4 of 80;"),
        (lambda scores: np.asarray(scores), "as a tensor, not as ndarray"),
    ],
    ids=[
        "a class less",
        "classes twice",
        "an image less",
        "predictions",
        "NaN",
        "infinity",
        "array",
    ],
)
def test_scores_that_cannot_be_are_refused(spy, how, complaint, tiny_task):
    with pytest.raises(MethodError, match=f"{spy.__name__} .*{complaint}"):
        protocol.run(breaking(spy, how), tiny_task, Runtime())


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"parts": {"fn": len}}, "gives a builtin_function_or_method as parts/fn, and must be"),
        ({"means": np.zeros(3)}, "gives a ndarray as means"),
        ({"by_class": {3: 1}}, r"the key 3 in by_class, and keys must be texts: write str\(key\)"),
    ],
)
def test_a_state_that_cannot_be_saved_is_refused(state, complaint, tiny_task):
    method = Spy()
    method.state = lambda: state
    with pytest.raises(MethodError, match=rf"Spy: state\(\) .*{complaint}"):
        protocol.run(method, tiny_task, Runtime())


def test_other_scores_are_checked_and_named(tiny_task):
    method = FrozenSpy()
    method.also_scores_of = lambda features: {"second": torch.zeros(3, 3)}
    with pytest.raises(MethodError, match=r"FrozenSpy \(second\) .*shape \(20, 4\)"):
        protocol.run(method, tiny_task, Runtime())


def test_other_scores_are_the_same_after_each_session(tiny_task):
    method = FrozenSpy()
    seen: list[int] = []  # classes, of each session

    def also_scores_of(features: Tensor) -> dict[str, Tensor]:
        scores = method.scores_of(features)
        seen.append(scores.shape[1])
        return {"late": scores} if seen[-1] > seen[0] else {}

    method.also_scores_of = also_scores_of
    with pytest.raises(MethodError, match=r"it gave '', 'late' where it gave '' "):
        protocol.run(method, tiny_task, Runtime())


@pytest.mark.parametrize(
    "how", [lambda f: f[:-1], lambda f: f[0], lambda f: f[None]], ids=["too few", "flat", "deep"]
)
def test_features_that_cannot_be_are_refused(how, tiny_task):
    method = FrozenSpy()
    method.embed = lambda images: how(method.inner.features(images))
    with pytest.raises(MethodError, match=r"FrozenSpy .*features .*\(40, d\)"):
        protocol.run(method, tiny_task, Runtime())


def test_a_test_set_without_base_classes_is_refused_before_anything_is_learnt(task):
    late = ~torch.isin(task.test.labels, torch.tensor(task.split.seen(0)))
    broken = replace(task, test=task.test.select(late.nonzero().squeeze(1)))
    method = Spy()
    with pytest.raises(DataError, match=r"^no test image of tiny is of a base class: add some$"):
        protocol.run(method, broken, Runtime())
    assert method.inner.learnt == []


def test_session_sizes(task):
    assert protocol.session_sizes(task) == [(4, 20), (6, 30), (8, 40)]
