"""Fine-tuning: bounded by a time, and kept only where it wins on held-out images."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fewmore import IncrementalClassifier
from fewmore.classifier.fitting import fine_tune as module
from fewmore.classifier.fitting.fine_tune import _draw_trial, _embed, _train, to_seconds
from fewmore.classifier.fitting.transform import transform_for
from fewmore.classifier.inputs import collect_images
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone, build

TRANSFORM = transform_for("resnet8", pretrained=True)
STEPS = 12


@pytest.fixture
def images(tiny_images: Callable[..., ImageSet]) -> ImageSet:
    """Draw nine classes of eight images, at the size that the network takes."""
    return tiny_images(9, 8, size=TRANSFORM.size)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a second pass with each step."""
    seconds = iter(range(10_000))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))


def no_progress(stage: str, done: int, total: int) -> None:
    """Take reports of progress."""


def train(backbone: Backbone, images: ImageSet) -> Backbone:
    generator = torch.Generator().manual_seed(0)
    learnt = torch.arange(len(images))
    return _train(backbone, images, learnt, TRANSFORM, STEPS, generator, no_progress)


def separation(backbone: Backbone, images: ImageSet) -> float:
    """Return the mean cosine within classes less that between them."""
    features = F.normalize(_embed(backbone, images, TRANSFORM), dim=1)
    same = images.labels[:, None] == images.labels
    cosines = features @ features.T
    return float(cosines[same].mean() - cosines[~same].mean())


@pytest.mark.usefixtures("clock")
def test_training_separates_classes_and_leaves_the_original_alone(images: ImageSet) -> None:
    backbone = build("resnet8", seed=1)
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    tuned = train(backbone, images)
    assert separation(tuned, images) > separation(backbone, images)
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, before[name]), name
        if "running" in name:
            assert torch.equal(tensor, tuned.state_dict()[name]), name


@pytest.mark.usefixtures("clock")
def test_weights_are_averaged_with_those_before(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = build("resnet8", seed=1)
    averaged = train(backbone, images)
    monkeypatch.setattr(module, "SHARE", 1.0)
    trained = train(backbone, images)
    parts = zip(*(net.parameters() for net in (backbone, averaged, trained)), strict=True)
    for before, half, after in parts:
        assert torch.allclose(half, (before + after) / 2, atol=1e-6)
        assert not torch.equal(before, after)


@pytest.mark.usefixtures("clock")
def test_it_ends_with_its_time(images: ImageSet) -> None:
    reports = []
    generator = torch.Generator().manual_seed(0)
    learnt = torch.arange(len(images))
    backbone = build("resnet8", seed=1)
    _train(backbone, images, learnt, TRANSFORM, STEPS, generator, lambda *a: reports.append(a))
    assert reports[-1] == ("fine-tuning", STEPS, STEPS)
    assert len(reports) == STEPS


@pytest.mark.parametrize("wins", [True, False])
def test_it_is_kept_only_where_it_wins(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch, wins: bool
) -> None:
    good = build("resnet8", seed=1)
    bad = build("resnet8", seed=1)
    for name, parameter in bad.named_parameters():
        if name.startswith("layer3"):  # all images look alike
            parameter.data.zero_()
    given, trained = (bad, good) if wins else (good, bad)
    sizes = []

    def pretend(backbone: Backbone, images: ImageSet, learnt: torch.Tensor, *_: object) -> Backbone:
        sizes.append(len(learnt))
        return trained

    monkeypatch.setattr(module, "_train", pretend)
    backbone, note = module.fine_tune(
        given, collect_images(images), TRANSFORM, torch.device("cpu"), 10.0, 0, no_progress
    )
    assert backbone is (trained if wins else given)
    assert note.startswith(f"the backbone is {'' if wins else 'not '}fine-tuned: in a trial ")
    assert sizes == ([6 * 7, 72] if wins else [6 * 7]), "new classes are kept from the trial"


def test_what_is_kept_from_the_trial() -> None:
    labels = torch.arange(9).repeat_interleave(10)
    is_new, is_held = _draw_trial(labels, 9, torch.Generator().manual_seed(0))
    assert int(is_new.sum()) == 30
    held = torch.bincount(labels[is_held], minlength=9)
    new = torch.bincount(labels[is_new], minlength=9) > 0
    assert held[new].tolist() == [5] * 3
    assert held[~new].tolist() == [2] * 6


def test_few_classes_prove_nothing(tiny_images: Callable[..., ImageSet], weights: Path) -> None:
    classifier = IncrementalClassifier("resnet8", weights, fine_tune="1h").fit(tiny_images(3, 8))
    (note,) = [note for note in classifier.notes_ if "fine-tuned" in note]
    assert note.startswith("the backbone is not fine-tuned: 3 classes are too few")


def test_small_classes_prove_nothing(tiny_images: Callable[..., ImageSet], weights: Path) -> None:
    classifier = IncrementalClassifier("resnet8", weights, fine_tune="1h").fit(tiny_images(6, 4))
    (note,) = [note for note in classifier.notes_ if "fine-tuned" in note]
    assert "no class has enough images to hold some out, and 5 are needed" in note


@pytest.mark.usefixtures("clock")
def test_fit_says_what_came_of_it(images: ImageSet, weights: Path, tmp_path: Path) -> None:
    classifier = IncrementalClassifier("resnet8", weights, fine_tune=2 * STEPS).fit(images)
    (note,) = [note for note in classifier.notes_ if "fine-tuned" in note]
    assert " held-out images are right, " in note
    classifier.save(tmp_path / "a.fewmore")
    again = IncrementalClassifier.load(tmp_path / "a.fewmore")
    torch.testing.assert_close(again.embed(images), classifier.embed(images))


@pytest.mark.parametrize(
    ("duration", "seconds"), [("10m", 600), ("90s", 90), ("1.5h", 5400), (30, 30), ("45", 45)]
)
def test_durations(duration: str | float, seconds: float) -> None:
    assert to_seconds(duration) == seconds


@pytest.mark.parametrize("duration", ["", "ten", "-3m", "0", "nan", "m", "inf"])
def test_what_is_no_duration(duration: str, images: ImageSet, weights: Path) -> None:
    with pytest.raises(ConfigError, match="give one such as 10m"):
        IncrementalClassifier("resnet8", weights, fine_tune=duration).fit(images)
