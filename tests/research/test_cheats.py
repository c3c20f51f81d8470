"""Test that a run refuses methods that use test images, or keep images, against the protocol."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet, Ragged
from fewmore.errors import MethodError
from fewmore.methods.base import FrozenBackbone, Method, Recipe
from fewmore.nn.prototypes import class_means
from fewmore.research import integrity, protocol
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.runtime import Runtime

RECIPE = Recipe("none", "none", Transform(8, (0.5,) * 3, (0.5,) * 3, "pad"))


class PixelMeans:
    """Classify by the nearest class mean of pixels, at which no cheat is needed but some help."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(RECIPE, Runtime(), seed)
        self.means = torch.empty(0, 192)

    def fit(self, base: ImageSet) -> None:
        self.add(base)

    def learn(self, session: ImageSet) -> None:
        self.add(session)

    def add(self, images: ImageSet) -> None:
        new = class_means(self.features(images), images.labels, len(images.class_names))
        self.means = torch.cat([self.means, new])
        self.sessions += 1

    def features(self, images: ImageSet) -> Tensor:
        return images.storage[images.indices].flatten(1) / 255

    def compare(self, features: Tensor) -> Tensor:
        return -torch.cdist(features, self.means)

    def state(self):
        return {"means": self.means.clone(), "sessions": self.sessions}

    def restore(self, state) -> None:
        self.means = state["means"]
        self.sessions = state["sessions"]


class Plain(PixelMeans, Method):
    """Score images, as a method does whose features change."""

    def scores(self, images: ImageSet) -> Tensor:
        return self.compare(self.features(images))


class Frozen(PixelMeans, FrozenBackbone):
    """Embed images once and score their features."""

    def embed(self, images: ImageSet) -> Tensor:
        return self.features(images)

    def scores_of(self, features: Tensor) -> Tensor:
        return self.compare(features)


def is_test(images: ImageSet) -> bool:
    """Say whether the images are test images; a cheat that the exam must not see asks this."""
    return images.class_names == ("?",)


def refused(method: Method, task, why: str) -> None:
    with pytest.raises(MethodError, match=f"{type(method).__name__}.*{why}"):
        protocol.run(method, task, Runtime())


@pytest.mark.parametrize("honest", [Plain, Frozen])
def test_an_honest_method_passes_all_checks(honest, tiny_task, tmp_path):
    path = tmp_path / "checkpoint"
    outcome = protocol.run(honest(), tiny_task, Runtime(checkpoint=Checkpoint(path)))
    assert outcome.checks == list(integrity.CHECKS)
    assert outcome.images_kept == [0, 0, 0]
    resumed = protocol.run(honest(), tiny_task, Runtime(checkpoint=Checkpoint(path)))
    assert resumed.checks == outcome.checks


# ---- what the order of test images could tell


class SessionTag(Frozen):
    """Write into every feature how many sessions were learnt when it was computed."""

    def features(self, images: ImageSet) -> Tensor:
        tagged = super().features(images).clone()
        tagged[:, -1] = 100 * (self.sessions - is_test(images))
        return tagged


def test_a_session_tag_in_the_features_is_refused(tiny_task):
    refused(SessionTag(), tiny_task, "depend on the other images of the batch, or on when")


class UndoneShuffle(Plain):
    """Undo the order that a fixed seed gives, and count on a test set sorted by class."""

    def scores(self, images: ImageSet) -> Tensor:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.seed))
        classes = order * len(self.means) // len(images)
        return nn.functional.one_hot(classes, len(self.means)).float()


def test_undoing_the_shuffle_is_refused(tiny_task):
    refused(UndoneShuffle(), tiny_task, "depend on the other images")


def test_undoing_the_shuffle_says_nothing(tiny_task, monkeypatch):
    monkeypatch.setattr(integrity, "check_same_scores", lambda *_: None)
    outcome = protocol.run(UndoneShuffle(), tiny_task, Runtime())
    assert outcome.summary().accuracy.max() < 60  # it was 100


# ---- statistics of the test batch


def batch_norm(features: Tensor) -> Tensor:
    return nn.BatchNorm1d(features.shape[1]).train()(features).detach()


def centre(features: Tensor) -> Tensor:
    return features - features.mean(0)


def whiten(features: Tensor) -> Tensor:
    centred = centre(features)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(features))
    return centred @ vectors / (values.clamp(min=0) + 0.01).sqrt()


def mix(features: Tensor) -> Tensor:
    """Mix each feature with that of another image of the batch: docs/published.md."""
    return (features + features.roll(1, 0)) / 2


def sinkhorn(scores: Tensor) -> Tensor:
    """Make all classes equally frequent in the batch."""
    shares = (scores * 5).softmax(1)
    for _ in range(20):
        shares = shares / shares.sum(0)
        shares = shares / shares.sum(1, keepdim=True)
    return shares.log()


@pytest.mark.parametrize("base", [Plain, Frozen])
@pytest.mark.parametrize("statistics", [batch_norm, centre, whiten, mix])
def test_statistics_of_the_test_batch_are_refused(base, statistics, tiny_task):
    class Transductive(base):
        def features(self, images: ImageSet) -> Tensor:
            return statistics(super().features(images))

    refused(Transductive(), tiny_task, "depend on the other images of the batch")


@pytest.mark.parametrize("base", [Plain, Frozen])
def test_equal_class_counts_in_the_test_batch_are_refused(base, tiny_task):
    class Balanced(base):
        def compare(self, features: Tensor) -> Tensor:
            return sinkhorn(super().compare(features))

    refused(Balanced(), tiny_task, "depend on the other images of the batch")


def test_random_scores_are_refused(tiny_task):
    class Noisy(Plain):
        def scores(self, images: ImageSet) -> Tensor:
            return super().scores(images) + torch.rand(len(images), len(self.means))

    refused(Noisy(), tiny_task, "or on when it is scored")


def test_frozen_features_that_change_with_a_session_are_refused(tiny_task):
    class Drifting(Frozen):
        def features(self, images: ImageSet) -> Tensor:
            drift = 0.1 if is_test(images) and self.sessions == 3 else 0
            return super().features(images) * (1 + drift)

    refused(Drifting(), tiny_task, "or on when it is scored")


@pytest.mark.parametrize("amount", [1e-6, 1e-4])
def test_rounding_is_not_refused(amount, tiny_task):
    class Rounding(Plain):
        def scores(self, images: ImageSet) -> Tensor:
            return super().scores(images) * (1 + amount * len(images) / 20)

    protocol.run(Rounding(), tiny_task, Runtime())


def test_a_vote_that_rounding_turns_around_is_not_refused():
    scores = torch.rand(64, 5)
    again = scores.clone()
    again[3] = again[3].flip(0) + 1
    integrity.check_same_scores(Plain(), scores, again)
    with pytest.raises(MethodError, match="64 of 64 test images"):
        integrity.check_same_scores(Plain(), scores, scores.flip(1) + 1)
    with pytest.raises(MethodError, match="64 of 64 test images"):
        integrity.check_same_scores(Plain(), scores, scores * float("nan"))


def test_scores_of_a_small_batch_must_have_their_shape(tiny_task):
    class Padded(Plain):
        def scores(self, images: ImageSet) -> Tensor:
            scores = super().scores(images)
            return scores if len(images) >= 20 else torch.cat([scores, scores])

    refused(Padded(), tiny_task, r"shape \(20, 4\).*\(10, 4\) was expected")


# ---- learning from test images


class Learning(Plain):
    """Move class means towards the test images that are nearest, once they are scored."""

    def scores(self, images: ImageSet) -> Tensor:
        scores = super().scores(images)
        if self.means.shape[0] == 8:  # in the last session alone
            self.means[0] += 1e-6
        return scores


class LearningInEmbed(Frozen):
    """Gather statistics of all test images as they pass by."""

    passed = 0

    def embed(self, images: ImageSet) -> Tensor:
        if is_test(images):
            self.passed += len(images)
        return super().embed(images)

    def state(self):
        return {**super().state(), "passed": self.passed}


@pytest.mark.parametrize("cheat", [Learning, LearningInEmbed])
def test_learning_while_scoring_is_refused(cheat, tiny_task):
    refused(cheat(), tiny_task, "scoring test images changed its state")


# ---- keeping images


def as_floats(images: ImageSet) -> Tensor:
    return images.storage[images.indices].float()


FORMS: dict[str, Callable[[ImageSet], object]] = {
    "image set": lambda images: images,
    "uint8": lambda images: images.storage,
    "uint8, flat": lambda images: images.storage.flatten(),
    "float": as_floats,
    "normalized": lambda images: (as_floats(images) - 127) / 60,
    "half": lambda images: as_floats(images).half(),
    "channels last": lambda images: as_floats(images).permute(0, 2, 3, 1).contiguous(),
    "list": lambda images: list(as_floats(images)),
    "array": lambda images: as_floats(images).numpy(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("base", [Plain, Frozen])
def test_images_that_are_kept_and_not_declared_are_refused(base, form, tiny_task):
    class Keeping(base):
        kept = None

        def learn(self, session: ImageSet) -> None:
            super().learn(session)
            self.kept = FORMS[form](session)

    refused(Keeping(), tiny_task, r"holds 6 images and declares 0: images_kept\(\) must count")


def test_images_in_the_state_and_in_modules_are_counted(tiny_task):
    class InState(Plain):
        def learn(self, session: ImageSet) -> None:
            super().learn(session)
            self.hidden = lambda: as_floats(session)

        def state(self):
            kept = {"x": {"y": self.hidden()}} if self.sessions > 1 else {}
            return {**super().state(), **kept}

    class InModule(Plain):
        def learn(self, session: ImageSet) -> None:
            super().learn(session)
            self.module = nn.Linear(2, 2)
            self.module.register_buffer("x", as_floats(session))

    refused(InState(), tiny_task, "holds 6 images and declares 0")
    refused(InModule(), tiny_task, "holds 6 images and declares 0")


def test_images_of_several_sizes_are_counted_one_by_one():
    arrays = [np.zeros((3, 4 + i, 9), np.uint8) for i in range(5)]
    ragged = ImageSet.from_images(Ragged.from_arrays(arrays), torch.zeros(5), ["a"])
    method = Plain()
    method.kept = [ragged, {"again": ragged}]
    assert integrity.count_images(method, {"state": ragged.state()}, ragged) == 5
    method.kept = torch.zeros(4, 3, 6, 9)
    assert integrity.count_images(method, {}, ragged) == 4


def test_test_images_that_are_kept_are_refused(tiny_task):
    class Collecting(Frozen):
        def __init__(self) -> None:
            super().__init__()
            self.collected: list[ImageSet] = []

        def embed(self, images: ImageSet) -> Tensor:
            if is_test(images):
                self.collected.append(images)
            return super().embed(images)

    refused(Collecting(), tiny_task, "holds 50 images and declares 0")


class Declaring(Plain):
    """Keep the images of the last session and declare them."""

    keeps: str | None = "the last session's images"

    def learn(self, session: ImageSet) -> None:
        super().learn(session)
        self.kept = session

    def images_kept(self) -> int:
        return len(self.kept) if self.sessions > 1 else 0


def test_images_that_are_declared_may_be_kept(tiny_task):
    assert protocol.run(Declaring(), tiny_task, Runtime()).images_kept == [0, 6, 6]


def test_images_must_be_declared_in_words_too(tiny_task):
    class Silent(Declaring):
        keeps = None

    refused(Silent(), tiny_task, "`keeps` is None: say there what it keeps")


def test_weights_and_random_states_are_no_images(tiny_task):
    """Check that patch embeddings as large as an image, features and generators are not counted."""

    class Weights(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 32, 8)
            self.generator = torch.Generator().get_state()
            self.features_of_base = torch.zeros(100, 192)
            self.names = np.array(["a", "b"])

        def state(self):
            weights = {k: t.clone() for k, t in self.patches.state_dict().items()}
            return {**super().state(), "patches": weights, "generator": self.generator}

    assert protocol.run(Weights(), tiny_task, Runtime()).images_kept == [0, 0, 0]
