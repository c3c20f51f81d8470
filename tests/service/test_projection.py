"""Test the map of the classes."""

from pathlib import Path

import torch

from fewmore import IncrementalClassifier
from fewmore.classifier.heads import Head, Scorer
from fewmore.nn.adapter import Adapter
from fewmore.service.projection import project


def test_classes_that_are_alike_lie_together(model: Path):
    classifier = IncrementalClassifier.load(model)
    classifier.forget(classifier.classes_)
    towards = torch.eye(64)[[3, 3, 40]] + 1
    features = {
        f"class {number}": row + 0.01 * torch.rand(4, 64) for number, row in enumerate(towards)
    }
    classifier.learn_features(features)
    before, after, adapted = project(classifier.scorer)
    assert not adapted
    assert torch.equal(before, after)
    assert before.abs().max() == 1
    near, far = (before[0] - before[1]).norm(), (before[0] - before[2]).norm()
    assert near < 0.1 * far


def test_an_adapter_moves_them(model: Path):
    classes = IncrementalClassifier.load(model).scorer.classes
    adapter = Adapter(64, generator=torch.Generator().manual_seed(0)).eval().requires_grad_(False)
    before, after, adapted = project(
        Scorer.build(Head(torch.device("cpu"), 64, 0.0, adapter), classes)
    )
    assert adapted
    assert before.shape == after.shape == (3, 2)
    assert not torch.allclose(before, after, atol=1e-3)


def test_few_classes_have_a_map_too(model: Path):
    classifier = IncrementalClassifier.load(model)
    classifier.forget(["robin", "wren"])
    before, after, _ = project(classifier.scorer)
    assert before.shape == after.shape == (1, 2)
    classifier.forget("jay")
    before, _, _ = project(classifier.scorer)
    assert before.shape == (0, 2)
