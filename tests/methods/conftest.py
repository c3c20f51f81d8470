"""Provide sessions to learn from, the losses that methods train by, and naive forms of them."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from fewmore.data.augment import test_view
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research.exam_world import TRANSFORM
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.pretrain import PretrainConfig, pretrain
from fewmore.training.runtime import Round, Runtime


@pytest.fixture
def sessions(tiny_task: Task) -> list[ImageSet]:
    """Return the images of each session."""
    return [session.select_from(tiny_task.train).compact() for session in tiny_task.split.sessions]


@dataclass
class Training:
    """Hold a call of `train_by_loss`: its images, and the loss of all of them at some moment."""

    images: ImageSet
    view: Tensor
    modules: dict[str, nn.Module]  # copies, as they were at that moment
    loss: float


@pytest.fixture
def record_training(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], list[Training]]:
    """Return a function that replaces a module's `train_by_loss` and lists its calls.

    Instead of training, random numbers are added to all weights, so that the network differs from
    the one of before. The loss is computed after that.
    """

    def record(module: ModuleType) -> list[Training]:
        calls: list[Training] = []

        def train_by_loss(loss_of, modules, images, transform, *rest) -> None:
            generator = torch.Generator().manual_seed(len(calls))
            view = test_view(images, torch.arange(len(images)), transform)
            with torch.no_grad():
                for part in modules.values():
                    for weight in part.parameters():
                        weight += 0.1 * torch.randn(weight.shape, generator=generator)
                loss = float(loss_of(view, images.labels))
            calls.append(Training(images, view, copy.deepcopy(modules), loss))

        monkeypatch.setattr(module, "train_by_loss", train_by_loss)
        return calls

    return record


class Naive:
    """Compute losses from their formulas, number by number."""

    @staticmethod
    def log_softmax(row: Sequence[float]) -> list[float]:
        """Return the logarithm of exp(z_i) / Σ_j exp(z_j)."""
        total = math.log(sum(math.exp(value) for value in row))
        return [value - total for value in row]

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> float:
        """Return the mean over images of −log softmax(z)_label."""
        rows = zip(logits.double().tolist(), labels.tolist(), strict=True)
        return -sum(self.log_softmax(row)[label] for row, label in rows) / len(labels)

    def distillation(self, logits: Tensor, teacher: Tensor, temperature: float) -> float:
        """Return the mean over images of T² · Σ_i p_i log(p_i / q_i).

        p and q are the softmax of teacher and student at temperature T (Hinton et al., 2015).
        """
        total = 0.0
        for own, old in zip(logits.double().tolist(), teacher.double().tolist(), strict=True):
            log_q = self.log_softmax([value / temperature for value in own])
            log_p = self.log_softmax([value / temperature for value in old])
            total += sum(math.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True))
        return temperature**2 * total / len(logits)


@pytest.fixture
def naive() -> Naive:
    """Return the losses in their naive form."""
    return Naive()


@pytest.fixture
def stage_1_tensors(tmp_path: Path) -> Callable[..., dict[str, Tensor]]:
    """Return a function that trains stage 1, and returns all tensors that it ends with.

    It takes the settings and the images. With `stop_after` the training is stopped after so many
    epochs, and goes on from its checkpoint.
    """

    def learn(config: PretrainConfig, images: ImageSet, runtime: Runtime) -> None:
        count = len(images.class_names) * config.labels_per_class
        backbone = build("resnet8", 0)
        rows = random_prototypes(count, backbone.dim, torch.Generator().manual_seed(1))
        classifier = Classifier("cosine", rows)
        pretrain(backbone, classifier, images, TRANSFORM, config, runtime, 0)

    def tensors(
        config: PretrainConfig, images: ImageSet, stop_after: int | None = None
    ) -> dict[str, Tensor]:
        path = tmp_path / f"stopped after {stop_after}"

        def stop(report: Round) -> None:
            if stop_after is not None and report.round > stop_after:
                raise KeyboardInterrupt

        if stop_after is not None:
            with pytest.raises(KeyboardInterrupt):
                learn(config, images, Runtime(checkpoint=Checkpoint(path, 0), on_round=stop))
            saved = Checkpoint(path).load("pretrain")
            assert saved is not None
            assert saved["done"] == stop_after
        learn(config, images, Runtime(checkpoint=Checkpoint(path, 0)))
        state = Checkpoint(path).load("pretrain")
        assert state is not None
        found: dict[str, Tensor] = state["tensors"]
        return found

    return tensors
