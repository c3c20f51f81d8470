"""Test losses in captured steps as docs/training.md has them, and the settings of stage 1."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from fewmore.accel.graphs import refusal
from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.errors import MethodError
from fewmore.methods import closer, fact, motic, s3c, savc
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training.contrast import info_nce, label_contrast_with
from fewmore.training.loop import train_epochs
from fewmore.training.mixing import sample_beta
from fewmore.training.momentum import MomentumEncoder, Queue
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.pretrain import Batch, Objective, PretrainConfig, pretrain
from fewmore.training.runtime import Round, Runtime

CUDA = torch.device("cuda", 0)
EAGER = frozenset({"batch-norm", "conv"})  # fused layers, but no graphs and no side streams
PAD = Transform(16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), pad=2)
CONFIG = PretrainConfig(epochs=2, batch=16, lr=0.01, milestones=(1,))
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.filterwarnings("default"),
]


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs a GPU."""
    for mark in gpu:
        test = mark(test)
    return test


# The sentence


def test_a_refusal_names_the_first_error_and_its_line() -> None:
    """Raise errors as a capture does: first that of the step, then that of the capture's end."""

    def stopped() -> None:
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError) as raised:
        stopped()
    text = str(refusal(raised.value))
    assert "cannot be captured as a CUDA graph: operation not permitted when stream" in text
    assert f"({__file__}, line " in text
    assert "--no-accel" in text
    assert "more lines" not in text
    assert "previous error" not in text
    assert "(" not in str(refusal(RuntimeError("never raised")))


def test_the_page_that_the_sentence_names_is_there() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "training.md"
    assert "## Losses under CUDA graphs" in page.read_text()


# Settings of stage 1


SETTINGS: dict[str, dict[str, object]] = {
    "mixup": {"mix": "mixup", "mix_alpha": 0.2},
    "cutmix": {"mix": "cutmix"},
    "views": {"views": 2},
    "rotations": {"rotations": 4},
    "ghost": {"ghost": 6},
    "fill": {"last_batch": "fill", "batch": 24},
    "smoothing, scale, head_lr": {"label_smoothing": 0.1, "scale": 32.0, "head_lr": 0.1},
    "all": {"mix": "cutmix", "views": 2, "rotations": 4, "label_smoothing": 0.1, "head_lr": 0.1},
}


def learnt(images: ImageSet, config: PretrainConfig, runtime: Runtime) -> dict[str, Tensor]:
    """Return all weights and statistics after stage 1."""
    backbone = build("resnet8").to(CUDA, memory_format=torch.channels_last)  # type: ignore[call-overload]
    rows = random_prototypes(4 * config.rotations, 64, torch.Generator().manual_seed(0))
    classifier = Classifier("cosine", rows).to(CUDA)
    kept = pretrain(backbone, classifier, images, PAD, config, runtime, 0)
    tensors = {**backbone.state_dict(), **classifier.state_dict(), **kept}
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


class MomentumObjective(Objective):
    """Contrast features with those of a momentum encoder, and with a queue of them by labels."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.encoder = MomentumEncoder(self.backbone, 0.9)
        self.queue = Queue(40, 64, torch.Generator().manual_seed(0))
        self.projection = nn.Linear(64, 64, bias=False)
        with torch.no_grad():
            self.projection.weight.copy_(torch.eye(64))
        self.modules = {
            "encoder": self.encoder,
            "queue": self.queue,
            "projection": self.projection,
        }

    def auxiliary(self, batch: Batch) -> Tensor:
        self.encoder.update()
        keys = self.encoder(batch.view).float()
        others, labels = self.queue.read()
        queries = self.projection(batch.features)
        by_label = label_contrast_with(queries, batch.labels, others, labels, 8.0)
        loss = info_nce(queries, keys, others, 8.0) + by_label
        self.queue.add(keys, batch.labels)
        return loss

    def kept(self) -> dict[str, Tensor]:
        return {"queue": self.queue.features, "labels": self.queue.labels}


@dataclass(frozen=True)
class MomentumConfig(PretrainConfig):
    """Hold no more settings."""

    objective_type = MomentumObjective


OBJECTIVES: dict[str, Callable[..., PretrainConfig]] = {
    "closer": closer.Features,
    "fact": partial(fact.Features, virtual=6, reserve=0.5, schedule="milestones"),
    "s3c": s3c.Features,
    "motic": partial(motic.Features, warm_up=0, queue=80, closeness_from=0),
    "savc": partial(savc.Features, queue=80, local_size=9, schedule="milestones"),
    "momentum": MomentumConfig,
}


@on_gpu
@pytest.mark.parametrize("setting", [*SETTINGS, *OBJECTIVES])
def test_captured_steps_learn_what_eager_ones_do(
    tiny_images: Callable[..., ImageSet], full_precision: None, setting: str
) -> None:
    """Five steps, with the same random numbers."""
    images = tiny_images(4, 20, size=16).to(CUDA)
    if setting in OBJECTIVES:
        config = OBJECTIVES[setting](epochs=1, batch=16, lr=0.01, milestones=(1,))
    else:
        config = replace(CONFIG, epochs=1, **SETTINGS[setting])  # type: ignore[arg-type]
    eager = learnt(images, config, Runtime(CUDA, precision="fp32", accel=EAGER))
    captured = learnt(images, config, Runtime(CUDA, precision="fp32"))
    plain = learnt(images, replace(CONFIG, epochs=1), Runtime(CUDA, precision="fp32"))
    assert not torch.allclose(plain["conv1.weight"], captured["conv1.weight"], atol=1e-4)
    for name, tensor in eager.items():
        torch.testing.assert_close(
            tensor, captured[name], rtol=1e-3, atol=1e-4, msg=lambda t, n=name: f"{n}: {t}"
        )


@on_gpu
@pytest.mark.parametrize("accel", [EAGER, True], ids=["eager", "captured"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_step_makes_the_host_wait(
    tiny_images: Callable[..., ImageSet], setting: str, accel: bool | frozenset[str]
) -> None:
    reports: list[Round] = []
    runtime = Runtime(CUDA, accel=accel, forbid_sync=True, on_round=reports.append)
    config = replace(CONFIG, **SETTINGS[setting])  # type: ignore[arg-type]
    learnt(tiny_images(4, 20, size=16).to(CUDA), config, runtime)
    assert [report.round for report in reports] == [1, 2]


@on_gpu
def test_shares_are_beta_on_a_gpu_too() -> None:
    sampled = sample_beta(400_000, 0.2, torch.Generator(CUDA).manual_seed(0)).double()
    assert float(sampled.mean()) == pytest.approx(0.5, abs=0.003)
    assert float(sampled.var()) == pytest.approx(1 / (4 * 1.4), rel=0.01)


# What a loss must not do

Make = Callable[[nn.Module], Callable[[Tensor, Generator], Tensor]]


def square(weight: nn.Module, rows: Tensor) -> Tensor:
    loss: Tensor = weight(rows[:, None].float()).square().mean()
    return loss


def train_by(
    make: Make, accel: bool | frozenset[str], forbid_sync: bool = False, seed: int = 0
) -> list[float]:
    """Train a small layer by a loss for 3 epochs of 4 steps, and return the mean losses."""
    weight = nn.Linear(1, 1)
    nn.init.ones_(weight.weight)
    nn.init.zeros_(weight.bias)
    weight = weight.to(CUDA)
    reports: list[Round] = []
    runtime = Runtime(CUDA, "fp32", accel, on_round=reports.append, forbid_sync=forbid_sync)
    config = EpochsConfig(epochs=3, batch=2, lr=1e-4)
    parameters = list(weight.parameters())
    train_epochs("test", {"w": weight}, parameters, make(weight), 8, config, runtime, seed)
    return [report.loss for report in reports]


def reads_a_value(weight: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        loss = square(weight, rows)
        return loss / loss.item()

    return loss_of


def branches_on_a_value(weight: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        loss = square(weight, rows)
        return loss if loss < 1 else loss.sqrt()

    return loss_of


def selects_by_a_mask(weight: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
    return lambda rows, generator: square(weight, rows[rows >= 0])


def copies_from_the_host(weight: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
    return lambda rows, generator: square(weight, rows) * torch.tensor([1.0, 2.0], device=CUDA)[1]


WAITING: dict[str, Make] = {
    "item": reads_a_value,
    "branch": branches_on_a_value,
    "mask": selects_by_a_mask,
    "host list": copies_from_the_host,
}


@on_gpu
@pytest.mark.parametrize("name", WAITING)
def test_a_loss_that_waits_is_refused_by_a_sentence_and_runs_without_graphs(name: str) -> None:
    make = WAITING[name]
    with pytest.raises(MethodError, match=r"cannot be captured .*--no-accel") as raised:
        train_by(make, True)
    assert __file__ in str(raised.value)
    torch.cuda.synchronize()
    assert len(train_by(make, False)) == 3
    with pytest.raises(RuntimeError, match="synchronizing"):
        train_by(make, False, forbid_sync=True)
    # The next training in this process is captured as if nothing had been.
    fine = train_by(lambda weight: lambda rows, generator: square(weight, rows), True)
    assert fine == pytest.approx(
        train_by(lambda weight: lambda rows, generator: square(weight, rows), False)
    )


@on_gpu
def test_python_values_are_those_of_the_captured_step() -> None:
    """Count calls, and draw from Python's generator: both stand still while a graph is replayed."""

    def counting(calls: list[float]) -> Make:
        def make(weight: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
            def loss_of(rows: Tensor, generator: Generator) -> Tensor:
                calls.append(random.random())
                return 0 * square(weight, rows) + calls[-1]

            return loss_of

        return make

    eager: list[float] = []
    captured: list[float] = []
    assert len(set(train_by(counting(eager), False))) == 3
    assert len(eager) == 12
    losses = train_by(counting(captured), True)
    assert len(captured) == 4, "three times before the capture, and once in it"
    assert losses == pytest.approx([captured[-1]] * 3)


@on_gpu
def test_random_numbers_of_the_step_come_from_its_generator() -> None:
    """Draw from the given generator: as eager steps do, and by the seed. Others ignore the seed."""

    def given(weight: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
        def loss_of(rows: Tensor, generator: Generator) -> Tensor:
            return 0 * square(weight, rows) + torch.rand((), device=CUDA, generator=generator)

        return loss_of

    def other(weight: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
        return lambda rows, generator: 0 * square(weight, rows) + torch.rand((), device=CUDA)

    assert train_by(given, True) == pytest.approx(train_by(given, False))
    assert train_by(given, True) != train_by(given, True, seed=1)
    assert train_by(other, True) != train_by(other, True)


@on_gpu
def test_a_buffer_of_a_module_is_state_that_a_captured_step_changes() -> None:
    """Count steps in a buffer: what the calls before the capture add is undone."""

    class Counter(nn.Module):
        steps: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("steps", torch.zeros(()))

    def count(accel: bool) -> tuple[float, list[float]]:
        module = Counter().to(CUDA)

        def loss_of(rows: Tensor, generator: Generator) -> Tensor:
            module.steps.add_(1)
            return 0 * module.weight.sum() + module.steps

        reports: list[Round] = []
        runtime = Runtime(CUDA, "fp32", accel, on_round=reports.append)
        config = EpochsConfig(epochs=3, batch=2, lr=1e-4)
        train_epochs("t", {"m": module}, [module.weight], loss_of, 8, config, runtime, 0)
        return float(module.steps), [report.loss for report in reports]

    assert count(True) == count(False) == (12.0, [2.5, 6.5, 10.5])
