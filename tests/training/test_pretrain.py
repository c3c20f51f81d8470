"""Test stage 1, which learns the base session."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.data import augment
from fewmore.data.augment import Transform, train_view
from fewmore.data.images import ImageSet, Ragged
from fewmore.errors import ConfigError, MethodError
from fewmore.nn.backbones import Backbone, build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training.embed import embed
from fewmore.training.loop import train_epochs
from fewmore.training.mixing import cutmix
from fewmore.training.pretrain import Batch, Objective, PretrainConfig, pretrain
from fewmore.training.runtime import Round, Runtime

CONFIG = PretrainConfig(epochs=4, batch=16, lr=0.01, milestones=())


def untrained(classes: int, similarity: str = "cosine") -> tuple[Backbone, Classifier]:
    """Build a backbone and a classifier, the same ones each time."""
    backbone = build("resnet8", 0)
    generator = torch.Generator().manual_seed(1)
    prototypes = random_prototypes(classes, backbone.dim, generator)
    return backbone, Classifier(similarity, prototypes)


def learnt(
    images: ImageSet, transform: Transform, config: PretrainConfig = CONFIG, seed: int = 0
) -> dict[str, Tensor]:
    """Train stage 1 and return its parameters and buffers."""
    backbone, classifier = untrained(len(images.class_names) * config.rotations)
    pretrain(backbone, classifier, images, transform, config, Runtime(), seed)
    return {**backbone.state_dict(), **classifier.state_dict()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Say whether tensors are the same, bit for bit."""
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("similarity", ["cosine", "linear"])
def test_it_learns_to_tell_classes_apart(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform, similarity: str
) -> None:
    train = tiny_images(6, 24)
    test = tiny_images(6, 10, seed=1)
    backbone, classifier = untrained(6, similarity)
    reports: list[Round] = []
    pretrain(
        backbone, classifier, train, tiny_transform, CONFIG, Runtime(on_round=reports.append), 0
    )
    assert [r.stage for r in reports] == ["pretrain"] * 4
    assert reports[-1].loss < 0.7 * reports[0].loss
    with torch.no_grad():
        predicted = classifier(embed(backbone, test, tiny_transform)).argmax(1)
    assert float((predicted == test.labels).float().mean()) > 0.8  # chance is a sixth


def test_backbone_classifier_and_statistics_change(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    backbone, classifier = untrained(4)
    before = {
        name: tensor.clone()
        for name, tensor in {**backbone.state_dict(), **classifier.state_dict()}.items()
    }
    after = learnt(tiny_images(), tiny_transform)
    assert all(not torch.equal(before[name], after[name]) for name in before)


def test_the_seed_decides_the_outcome(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images()
    one = learnt(images, tiny_transform, replace(CONFIG, epochs=1))
    assert same(one, learnt(images, tiny_transform, replace(CONFIG, epochs=1)))
    assert not same(one, learnt(images, tiny_transform, replace(CONFIG, epochs=1), seed=1))


def test_without_augmentation_images_are_seen_in_the_test_view(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    """Check that settings of augmentation make no difference then."""
    images = tiny_images()
    other = replace(tiny_transform, pad=3, flip=True)
    plain = replace(CONFIG, epochs=1, augment=False)
    assert same(learnt(images, tiny_transform, plain), learnt(images, other, plain))
    augmented = replace(CONFIG, epochs=1)
    assert not same(learnt(images, tiny_transform, augmented), learnt(images, other, augmented))


def test_images_of_several_sizes_are_learnt_from(tiny_images: Callable[..., ImageSet]) -> None:
    images = tiny_images(3, 8, size=16)
    crops = [images.image(i).numpy()[:, : 12 + i % 5, : 16 - i % 4] for i in range(len(images))]
    several = ImageSet.from_images(
        Ragged.from_arrays([np.ascontiguousarray(crop) for crop in crops]),
        images.labels,
        images.class_names,
    )
    transform = Transform(8, (0.5,) * 3, (0.25,) * 3, "resized", scale=(0.5, 1.0), resize=9)
    backbone, classifier = untrained(3)
    reports: list[Round] = []
    pretrain(
        backbone,
        classifier,
        several,
        transform,
        replace(CONFIG, epochs=6, batch=8),
        Runtime(on_round=reports.append),
        0,
    )
    assert reports[-1].loss < 0.7 * reports[0].loss


# Settings beyond the plain ones

SETTINGS: dict[str, dict[str, object]] = {
    "head_lr": {"head_lr": 0.1},
    "scale": {"scale": 32.0},
    "label smoothing": {"label_smoothing": 0.1},
    "mixup": {"mix": "mixup", "mix_alpha": 0.2},
    "cutmix": {"mix": "cutmix"},
    "views": {"views": 2},
    "2 rotations": {"rotations": 2},
    "4 rotations": {"rotations": 4},
    "all": {
        "head_lr": 0.1,
        "scale": 20.0,
        "label_smoothing": 0.1,
        "mix": "cutmix",
        "views": 2,
        "rotations": 4,
    },
}


class PerImage(Objective):
    """Add a loss of each image, which is no single number."""

    def auxiliary(self, batch: Batch) -> Tensor:
        return batch.features.square().sum(1)


@dataclass(frozen=True)
class PerImageConfig(PretrainConfig):
    objective_type = PerImage


def test_an_auxiliary_loss_that_is_no_single_number_is_refused(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    config = PerImageConfig(epochs=1, batch=16, milestones=())
    with pytest.raises(
        MethodError,
        match=r"the loss with PerImage.auxiliary is of shape \(16,\), and must be .* its mean\(\)",
    ):
        learnt(tiny_images(), tiny_transform, config)


def with_settings(changes: dict[str, object], config: PretrainConfig = CONFIG) -> PretrainConfig:
    return replace(config, **changes)  # type: ignore[arg-type]


def test_by_default_it_is_plain_cross_entropy_bit_for_bit(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    """Train by a loop without any of the settings, with the same random numbers."""
    images = tiny_images()
    backbone, classifier = untrained(4)
    backbone.train()

    def loss_of(indices: Tensor, generator: Generator) -> Tensor:
        view = train_view(images, indices, tiny_transform, generator)
        return F.cross_entropy(classifier(backbone(view)), images.labels[indices])

    modules = {"backbone": backbone, "classifier": classifier}
    parameters = [*backbone.parameters(), *classifier.parameters()]
    train_epochs("pretrain", modules, parameters, loss_of, len(images), CONFIG, Runtime(), 0)
    assert same(
        learnt(images, tiny_transform), {**backbone.state_dict(), **classifier.state_dict()}
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_setting_changes_what_is_learnt_and_keeps_it_finite(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform, setting: str
) -> None:
    images = tiny_images()
    config = replace(CONFIG, epochs=2)
    changed = learnt(images, tiny_transform, with_settings(SETTINGS[setting], config))
    plain = learnt(images, tiny_transform, config)
    assert not torch.equal(changed["conv1.weight"], plain["conv1.weight"])
    assert all(bool(tensor.isfinite().all()) for tensor in changed.values())
    again = learnt(images, tiny_transform, with_settings(SETTINGS[setting], config))
    assert same(changed, again)


def test_it_still_learns_with_all_settings_at_once(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    backbone, classifier = untrained(6 * 4)
    config = with_settings({**SETTINGS["all"], "mix_alpha": 0.2, "head_lr": None})
    pretrain(backbone, classifier, tiny_images(6, 24), tiny_transform, config, Runtime(), 0)
    test = tiny_images(6, 10, seed=1)
    with torch.no_grad():
        logits = classifier(embed(backbone, test, tiny_transform))
    predicted = logits[:, ::4].argmax(1)
    assert float((predicted == test.labels).float().mean()) > 0.8  # chance is a sixth


def first_loss(
    images: ImageSet, transform: Transform, config: PretrainConfig, similarity: str = "cosine"
) -> tuple[float, Tensor]:
    """Return the loss of the first step, and the images that the backbone saw in it."""
    backbone, classifier = untrained(len(images.class_names) * config.rotations, similarity)
    seen: list[Tensor] = []
    backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    reports: list[Round] = []
    one = replace(config, epochs=1, batch=len(images))
    pretrain(backbone, classifier, images, transform, one, Runtime(on_round=reports.append), 0)
    return reports[0].loss, seen[0]


def naive_cross_entropy(logits: Tensor, targets: Tensor) -> float:
    """Return the mean over images of −Σ_c q_c log softmax(z)_c, number by number."""
    total = 0.0
    for row, target in zip(logits.double().tolist(), targets.double().tolist(), strict=True):
        log_sum = math.log(sum(math.exp(value) for value in row))
        total -= sum(q * (value - log_sum) for q, value in zip(target, row, strict=True))
    return total / len(logits)


@pytest.mark.parametrize("scale", [16.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("rotations", [1, 2, 4])
def test_the_loss_is_that_of_its_formula(
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
    rotations: int,
    smoothing: float,
    scale: float,
) -> None:
    """Compute it from scaled cosines, smoothed labels and images rotated one by one."""
    images = tiny_images()
    config = replace(
        CONFIG, augment=False, scale=scale, label_smoothing=smoothing, rotations=rotations
    )
    loss, _ = first_loss(images, tiny_transform, config)
    backbone, classifier = untrained(4 * rotations)
    backbone.train()
    view = augment.test_view(images, torch.arange(len(images)), tiny_transform)
    rotated, labels = [], []
    for image, label in zip(view, images.labels.tolist(), strict=True):
        for k in range(rotations):
            rotated.append(torch.rot90(image, k * 4 // rotations, (1, 2)))
            labels.append(label * rotations + k)
    targets = F.one_hot(torch.tensor(labels)).double()
    targets = (1 - smoothing) * targets + smoothing / targets.shape[1]
    with torch.no_grad():
        features = F.normalize(backbone(torch.stack(rotated)), dim=1)
        logits = scale * features @ F.normalize(classifier.prototypes, dim=1).T
    assert loss == pytest.approx(naive_cross_entropy(logits, targets), rel=1e-4)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("rotations", [1, 4])
def test_a_step_sees_every_image_in_all_views_and_rotations(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform, views: int, rotations: int
) -> None:
    images = tiny_images()
    config = replace(CONFIG, views=views, rotations=rotations)
    _, seen = first_loss(images, tiny_transform, config)
    assert len(seen) == len(images) * views * rotations
    block = len(images) * views
    for k in range(rotations):
        expected = torch.rot90(seen[:block], k, (2, 3))
        assert torch.equal(seen[k * block : (k + 1) * block], expected)
    if views > 1:
        assert not torch.equal(seen[: len(images)], seen[len(images) : 2 * len(images)])


def test_mixed_images_are_what_the_backbone_sees(
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = tiny_images()
    made = []

    def recorded(*args: object) -> object:
        made.append((args, cutmix(*args)))  # type: ignore[arg-type]
        return made[-1][1]

    monkeypatch.setitem(pretrain.__globals__["MIXERS"], "cutmix", recorded)
    config = replace(CONFIG, mix="cutmix", mix_alpha=0.7, views=2)
    loss, seen = first_loss(images, tiny_transform, config)
    ((view, _, alpha, _), mixed) = made[0]
    assert alpha == 0.7
    assert torch.equal(seen, mixed.view)
    assert not torch.equal(seen, view)
    backbone, classifier = untrained(4)
    backbone.train()
    share = mixed.share[:, None].double()
    targets = share * F.one_hot(mixed.labels, 4) + (1 - share) * F.one_hot(mixed.partner_labels, 4)
    with torch.no_grad():
        logits = classifier(backbone(seen))
    assert loss == pytest.approx(naive_cross_entropy(logits, targets), rel=1e-4)


@pytest.mark.parametrize(("lr", "head_lr"), [(0.0, 0.1), (0.1, 0.0)])
def test_backbone_and_head_have_rates_of_their_own(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform, lr: float, head_lr: float
) -> None:
    backbone, classifier = untrained(4)
    after = learnt(tiny_images(), tiny_transform, replace(CONFIG, lr=lr, head_lr=head_lr))
    kept = [torch.equal(after[name], p) for name, p in backbone.named_parameters()]
    assert all(kept) if lr == 0 else not any(kept)
    assert torch.equal(after["prototypes"], classifier.prototypes) == (head_lr == 0)


def test_a_linear_head_has_no_scale(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    with pytest.raises(ConfigError, match="scale is for a cosine head, and this one is linear"):
        first_loss(tiny_images(), tiny_transform, replace(CONFIG, scale=8.0), "linear")


WRONG: list[tuple[dict[str, object], str]] = [
    ({"ghost": 1}, "ghost is a number of images, at least 2, or 0"),
    ({"head_lr": -0.1}, "head_lr must be a number of at least 0, or none, not -0.1"),
    ({"head_lr": math.nan}, "head_lr must be a number of at least 0, or none, not nan"),
    ({"scale": 0.0}, "scale must be a positive number, not 0.0"),
    ({"label_smoothing": 1.0}, r"label_smoothing must lie in \[0, 1\), not 1.0"),
    ({"label_smoothing": -0.1}, r"label_smoothing must lie in \[0, 1\), not -0.1"),
    ({"mix": "blend"}, "mix must be none, mixup or cutmix, not 'blend'"),
    ({"mix": "mixup", "mix_alpha": 0.0}, "mix_alpha must be a positive number, not 0.0"),
    ({"mix": "cutmix", "batch": 1}, "cutmix takes a batch of at least 2 images, not 1"),
    ({"views": 0}, "views must be at least 1, not 0"),
    ({"views": 2, "augment": False}, "2 views are the same without augment: set augment=true"),
    ({"rotations": 3}, "rotations must be 1, 2 or 4, not 3"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_setting_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^pretrain: {message}"):
        with_settings(changes)


def test_the_share_of_mixed_images_is_read_only_where_images_are_mixed() -> None:
    assert CONFIG.unread["mix_alpha"] == "mix=none"
    assert "mix_alpha" not in replace(CONFIG, mix="mixup").unread
