"""Test stage 3: what a session changes, and what it leaves alone."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fewmore.data import augment
from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.nn.backbones import Backbone, build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training.embed import embed
from fewmore.training.learn_session import (
    SessionConfig,
    class_prototypes,
    new_prototypes,
    outputs,
    train_by_loss,
    train_network,
    train_prototypes,
    untrained_prototypes,
)
from fewmore.training.runtime import Round, Runtime

CONFIG = SessionConfig(data_init=False, epochs=12, batch=8, lr=0.1, milestones=())


@pytest.fixture
def session(tiny_images: Callable[..., ImageSet]) -> ImageSet:
    """Return two new classes with five images each."""
    return tiny_images(6, 5).select_classes([4, 5])


@pytest.fixture
def known() -> Classifier:
    """Return the classifier of four known classes."""
    return Classifier("cosine", random_prototypes(4, 64, torch.Generator().manual_seed(1)))


def copied(module: nn.Module) -> dict[str, Tensor]:
    """Copy the parameters and buffers of a module."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def unchanged(module: nn.Module, before: dict[str, Tensor]) -> bool:
    """Say whether a module is as it was, bit for bit."""
    return all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_class_prototypes_are_the_means_of_each_class(
    backbone: Backbone, session: ImageSet, tiny_transform: Transform
) -> None:
    shuffled = session.select(torch.randperm(10, generator=torch.Generator().manual_seed(0)))
    prototypes = class_prototypes(backbone, shuffled, tiny_transform)
    backbone.eval()
    for label in (0, 1):
        of_class = [i for i in range(10) if int(shuffled.labels[i]) == label]
        with torch.no_grad():
            features = [
                backbone(augment.test_view(shuffled, torch.tensor([i]), tiny_transform))[0]
                for i in of_class
            ]
        mean = sum(features[1:], features[0]) / len(of_class)
        assert torch.allclose(prototypes[label], mean, atol=1e-5)


def test_class_prototypes_train_nothing(
    backbone: Backbone, session: ImageSet, tiny_transform: Transform
) -> None:
    before = copied(backbone)
    class_prototypes(backbone, session, tiny_transform)
    assert unchanged(backbone, before)


def test_untrained_prototypes_depend_on_the_seed_and_the_classes(
    backbone: Backbone, session: ImageSet, tiny_images: Callable[..., ImageSet]
) -> None:
    prototypes = untrained_prototypes(backbone, session, 0)
    assert prototypes.shape == (2, 64)
    assert torch.equal(prototypes, untrained_prototypes(backbone, session, 0))
    assert not torch.equal(prototypes, untrained_prototypes(backbone, session, 1))
    others = tiny_images(6, 5).select_classes([2, 3])
    assert not torch.equal(prototypes, untrained_prototypes(backbone, others, 0))


def test_train_prototypes_changes_the_new_prototypes_alone(
    backbone: Backbone, known: Classifier, session: ImageSet, tiny_transform: Transform
) -> None:
    new = Classifier("cosine", untrained_prototypes(backbone, session, 0))
    before = [copied(module) for module in (backbone, known, new)]
    reports: list[Round] = []
    train_prototypes(
        backbone,
        known,
        new,
        session,
        tiny_transform,
        CONFIG,
        Runtime(on_round=reports.append),
        0,
        "session 1",
    )
    assert unchanged(backbone, before[0]), "batch-norm statistics included"
    assert unchanged(known, before[1])
    assert bool((new.prototypes != before[2]["prototypes"]).any(1).all())
    assert all(p.grad is None for module in (backbone, known) for p in module.parameters())
    assert reports[-1].stage == "session 1"
    assert reports[-1].loss < reports[0].loss


def test_train_prototypes_learns_the_new_classes_among_all(
    backbone: Backbone, known: Classifier, session: ImageSet, tiny_transform: Transform
) -> None:
    new = Classifier("cosine", untrained_prototypes(backbone, session, 0))
    train_prototypes(
        backbone, known, new, session, tiny_transform, CONFIG, Runtime(), 0, "session 1"
    )
    classifier = known.grown(new.prototypes.detach())
    predicted = classifier(embed(backbone, session, tiny_transform)).argmax(1)
    assert (predicted == session.labels + 4).tolist() == [True] * 10


def test_train_prototypes_compares_the_new_classes_with_the_known_ones(
    backbone: Backbone, known: Classifier, session: ImageSet, tiny_transform: Transform
) -> None:
    """Check the first loss, of all images as they are: cross-entropy over all six classes."""
    new = Classifier("cosine", untrained_prototypes(backbone, session, 0))
    with torch.no_grad():
        features = embed(backbone, session, tiny_transform)
        logits = torch.cat([known(features), new(features)], 1).double().tolist()
    expected = [
        math.log(sum(map(math.exp, row))) - row[4 + label]
        for row, label in zip(logits, session.labels.tolist(), strict=True)
    ]
    reports: list[Round] = []
    train_prototypes(
        backbone,
        known,
        new,
        session,
        replace(tiny_transform, pad=0),
        replace(CONFIG, epochs=1, batch=10),
        Runtime(on_round=reports.append),
        0,
        "session 1",
    )
    assert reports[0].loss == pytest.approx(sum(expected) / 10, rel=1e-4)


def test_train_network_changes_everything(
    backbone: Backbone, known: Classifier, session: ImageSet, tiny_transform: Transform
) -> None:
    classifier = known.grown(untrained_prototypes(backbone, session, 0))
    before = [copied(module) for module in (backbone, classifier)]
    reports: list[Round] = []
    train_network(
        backbone,
        classifier,
        session,
        tiny_transform,
        CONFIG,
        Runtime(on_round=reports.append),
        0,
        "session 1",
    )
    assert all(
        not torch.equal(tensor, before[0][name]) for name, tensor in backbone.state_dict().items()
    )
    assert bool((classifier.prototypes != before[1]["prototypes"]).any(1).all())
    assert reports[-1].loss < reports[0].loss


def test_train_network_learns_the_last_classes(
    backbone: Backbone, known: Classifier, session: ImageSet, tiny_transform: Transform
) -> None:
    classifier = known.grown(untrained_prototypes(backbone, session, 0))
    train_network(backbone, classifier, session, tiny_transform, CONFIG, Runtime(), 0, "session 1")
    predicted = classifier(embed(backbone, session, tiny_transform)).argmax(1)
    assert bool((predicted >= 4).all())


def test_train_network_with_frozen_batch_norms(
    backbone: Backbone, known: Classifier, session: ImageSet, tiny_transform: Transform
) -> None:
    classifier = known.grown(untrained_prototypes(backbone, session, 0))
    before = copied(backbone)
    frozen = replace(CONFIG, frozen_norm=True, lr=0.001)
    train_network(backbone, classifier, session, tiny_transform, frozen, Runtime(), 0, "session 1")
    after = backbone.state_dict()
    same = {name for name in before if torch.equal(after[name], before[name])}
    assert same == {name for name in before if "running" in name}


def test_new_prototypes_are_what_the_config_says(
    backbone: Backbone, session: ImageSet, tiny_transform: Transform
) -> None:
    means, random = (
        new_prototypes(backbone, session, tiny_transform, replace(CONFIG, data_init=init), 0)
        for init in (True, False)
    )
    assert torch.equal(means, class_prototypes(backbone, session, tiny_transform))
    assert torch.equal(random, untrained_prototypes(backbone, session, 0))


def test_outputs_are_features_and_logits(backbone: Backbone, known: Classifier) -> None:
    view = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        features, logits = outputs(backbone.eval(), known, view)
    assert features.dtype == logits.dtype == torch.float32
    assert torch.equal(logits, known(features))


def test_train_by_loss_minimizes_any_loss(
    backbone: Backbone, session: ImageSet, tiny_transform: Transform
) -> None:
    classifier = Classifier("cosine", untrained_prototypes(backbone, session, 0))
    before = copied(backbone)
    seen = []

    def loss_of(view: Tensor, labels: Tensor) -> Tensor:
        seen.append((view.shape, labels.tolist()))
        return classifier(backbone(view)).gather(1, labels[:, None]).neg().mean()

    reports: list[Round] = []
    train_by_loss(
        loss_of,
        {"classifier": classifier},
        session,
        tiny_transform,
        CONFIG,
        Runtime(on_round=reports.append),
        0,
        "session 1",
    )
    assert reports[-1].loss < reports[0].loss
    assert all(shape == (8, 3, 8, 8) and set(labels) <= {0, 1} for shape, labels in seen)
    assert len(seen) == CONFIG.epochs
    assert all(
        torch.equal(t, before[name])
        for name, t in backbone.state_dict().items()
        if "running" not in name
    ), "not among the modules"


def test_train_by_loss_augments(session: ImageSet, tiny_transform: Transform) -> None:
    """Find every view among the nine shifts of an image by up to a pixel, most of them moved."""
    classifier = Classifier("linear", torch.zeros(2, 3 * 8 * 8))
    seen: list[Tensor] = []

    def loss_of(view: Tensor, labels: Tensor) -> Tensor:
        seen.append(view)
        return nn.functional.cross_entropy(classifier(view.flatten(1)), labels)

    config = replace(CONFIG, epochs=5, batch=10)
    train_by_loss(
        loss_of, {"c": classifier}, session, tiny_transform, config, Runtime(), 0, "session 1"
    )
    views = torch.cat(seen)[:, :, 1:-1, 1:-1]  # without the rim that padding may have reached
    plain = augment.test_view(session, torch.arange(10), tiny_transform)
    found = []
    for view in views:
        shifts = [
            (down, right)
            for down in (0, 1, 2)
            for right in (0, 1, 2)
            if bool((plain[:, :, down : down + 6, right : right + 6] == view).all((1, 2, 3)).any())
        ]
        assert len(shifts) == 1
        found += shifts
    assert len(found) == 50
    assert len(set(found)) == 9


@pytest.mark.parametrize("stage", ["session 1", "session 2"])
def test_the_same_seed_and_stage_give_the_same_prototypes(
    session: ImageSet, tiny_transform: Transform, known: Classifier, stage: str
) -> None:
    learnt = []
    for name in ("session 1", stage):
        backbone = build("resnet8")
        new = Classifier("cosine", untrained_prototypes(backbone, session, 0))
        train_prototypes(backbone, known, new, session, tiny_transform, CONFIG, Runtime(), 0, name)
        learnt.append(new.prototypes.detach())
    assert torch.equal(*learnt) is (stage == "session 1")
