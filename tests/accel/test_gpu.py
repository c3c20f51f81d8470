"""Test what only a GPU can show: no step waits, captured steps equal eager ones, runs share it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.accel import batch_norm, conv, warm_up
from fewmore.data import augment
from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet, Ragged
from fewmore.data.operations import KINDS, apply_operations
from fewmore.methods.base import Recipe
from fewmore.methods.recipe import override
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import Backbone, build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research import runner
from fewmore.research.experiment import Experiment
from fewmore.training.embed import embed
from fewmore.training.fast_path import share_gpu
from fewmore.training.learn_session import (
    SessionConfig,
    train_network,
    train_prototypes,
    untrained_prototypes,
)
from fewmore.training.loop import train_epochs
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.pretrain import PretrainConfig, pretrain
from fewmore.training.pseudo_incremental import PseudoConfig, pseudo_incremental
from fewmore.training.runtime import Round, Runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers warn of things that are not ours
    pytest.mark.usefixtures("full_precision"),
]

CUDA = torch.device("cuda", 0)
EAGER = frozenset({"batch-norm", "conv"})  # fused layers, but no graphs and no side streams
MEAN_STD = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
PAD = Transform(16, **MEAN_STD, pad=2)
RESIZED = Transform(16, **MEAN_STD, crop="resized", scale=(0.3, 1.0), resize=18)
CONFIG = PretrainConfig(epochs=2, batch=16, lr=0.01, milestones=(1,))


@pytest.fixture
def stored(tiny_images: Callable[..., ImageSet]) -> ImageSet:
    """80 images of 16 × 16: five steps of 16."""
    return tiny_images(4, 20, size=16)


def of_several_sizes(images: ImageSet) -> ImageSet:
    cut = [
        images.image(i)[:, : 16 - i % 3, : 16 - i % 4].contiguous().numpy()
        for i in range(len(images))
    ]
    return ImageSet.from_images(Ragged.from_arrays(cut), images.labels, images.class_names)


def much_larger(images: ImageSet) -> ImageSet:
    """Return images of several sizes whose views are antialiased."""
    cut = of_several_sizes(images)
    large = [
        cut.image(i).repeat_interleave(4, 1).repeat_interleave(4, 2).numpy()
        for i in range(len(images))
    ]
    return ImageSet.from_images(Ragged.from_arrays(large), images.labels, images.class_names)


AUGMENTED = replace(
    PAD, crop="mixed", jitter=(0.4, 0.4, 0.4, 0.1), grayscale=0.2, cutout=4, policy_probability=0.8
)
SETS: dict[str, tuple[Callable[[ImageSet], ImageSet], Transform]] = {
    "autoaugment": (lambda images: images, replace(AUGMENTED, policy="autoaugment-cifar10")),
    "interpolated": (
        lambda images: images,
        replace(
            AUGMENTED,
            policy="autoaugment-imagenet",
            policy_resampling="bilinear",
            cutout_color="black",
        ),
    ),
    "randaugment": (lambda images: images, replace(AUGMENTED, policy="randaugment")),
    "pad": (lambda images: images, PAD),
    "resized": (lambda images: images, RESIZED),
    "several sizes": (of_several_sizes, RESIZED),
    "much larger": (much_larger, RESIZED),
}


def untrained(seed: int = 0, classes: int = 4) -> tuple[Backbone, Classifier]:
    backbone = build("resnet8", seed).to(CUDA, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return backbone, Classifier(
        "cosine", random_prototypes(classes, 64, torch.Generator().manual_seed(seed))
    ).to(CUDA)


def learnt(
    images: ImageSet,
    transform: Transform,
    runtime: Runtime,
    config: PretrainConfig = CONFIG,
    seed: int = 0,
) -> dict[str, Tensor]:
    """All weights and statistics after stage 1."""
    backbone, classifier = untrained(seed)
    pretrain(backbone, classifier, images, transform, config, runtime, seed)
    return {
        name: tensor.detach().cpu()
        for name, tensor in {**backbone.state_dict(), **classifier.state_dict()}.items()
    }


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(
            tensor, other[name], rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


# Nothing waits


@pytest.mark.parametrize("accel", [EAGER, True], ids=["eager", "captured"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", SETS)
def test_no_step_of_stage_1_makes_the_host_wait(
    stored: ImageSet, kind: str, precision: str, accel: bool | frozenset[str]
) -> None:
    made, transform = SETS[kind]
    reports: list[Round] = []
    runtime = Runtime(
        CUDA, precision=precision, accel=accel, forbid_sync=True, on_round=reports.append
    )
    learnt(made(stored).to(CUDA), transform, runtime)
    assert [r.round for r in reports] == [1, 2]
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.parametrize("accel", [EAGER, True], ids=["eager", "captured"])
def test_no_step_of_a_session_makes_the_host_wait(
    stored: ImageSet, accel: bool | frozenset[str]
) -> None:
    session = stored.select_classes([2, 3]).to(CUDA)
    config = SessionConfig(epochs=2, batch=16, lr=0.01, data_init=False)
    runtime = Runtime(CUDA, accel=accel, forbid_sync=True)
    backbone, known = untrained(classes=2)
    new = Classifier("cosine", untrained_prototypes(backbone, session, 0))
    train_prototypes(backbone, known, new, session, PAD, config, runtime, 0, "session 1")
    train_network(
        backbone,
        known.grown(new.prototypes.detach()),
        session,
        PAD,
        config,
        runtime,
        0,
        "session 2",
    )


def test_a_step_that_waits_is_found() -> None:
    """Else the tests above would show nothing."""
    weight = torch.nn.Linear(2, 1).to(CUDA)

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        loss: Tensor = weight(rows[:, None].expand(-1, 2).float()).square().mean()
        loss.item()
        return loss

    runtime = Runtime(CUDA, accel=EAGER, forbid_sync=True)
    with pytest.raises(RuntimeError, match="synchronizing"):
        train_epochs(
            "waiting",
            {"weight": weight},
            list(weight.parameters()),
            loss_of,
            8,
            EpochsConfig(epochs=1, batch=4),
            runtime,
            0,
        )
    assert torch.cuda.get_sync_debug_mode() == 0


# A captured step is the eager one


@pytest.mark.parametrize("augmented", [False, True], ids=["plain", "augmented"])
@pytest.mark.parametrize("kind", SETS)
def test_captured_steps_learn_what_eager_ones_do(
    stored: ImageSet, kind: str, augmented: bool
) -> None:
    """Five steps. With augmentation, the draws must be the same too."""
    made, transform = SETS[kind]
    images = made(stored).to(CUDA)
    config = replace(CONFIG, epochs=1, augment=augmented)
    eager = learnt(images, transform, Runtime(CUDA, precision="fp32", accel=EAGER), config)
    captured = learnt(images, transform, Runtime(CUDA, precision="fp32", accel=True), config)
    start = {name: tensor.cpu() for name, tensor in untrained()[0].state_dict().items()}
    assert not torch.allclose(eager["conv1.weight"], start["conv1.weight"], atol=1e-3)
    assert_close(eager, captured)


OPTIMIZERS: dict[str, dict[str, object]] = {
    "ema": {"ema": 0.9},
    "adamw": {"optimizer": "adamw", "lr": 0.002},
    "adamw, cosine and ema": {
        "optimizer": "adamw",
        "lr": 0.002,
        "schedule": "cosine",
        "warm_up": 1,
        "ema": 0.9,
    },
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("changed", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_is_captured(
    tmp_path: Path, stored: ImageSet, changed: dict[str, object], precision: str
) -> None:
    """Captured steps learn what eager ones do, never wait, and go on after a stop."""
    from fewmore.training.checkpoint import Checkpoint

    class Stopped(Exception):
        pass

    def stop(report: Round) -> None:
        if report.round == 3:
            raise Stopped

    images = stored.to(CUDA)
    config = replace(CONFIG, epochs=4, **changed)  # type: ignore[arg-type]
    eager = learnt(images, PAD, Runtime(CUDA, precision=precision, accel=EAGER), config)
    captured = learnt(images, PAD, Runtime(CUDA, precision=precision, forbid_sync=True), config)
    assert_close(eager, captured)
    checkpoint = Checkpoint(tmp_path / "c", 0)
    runtime = Runtime(CUDA, precision=precision, checkpoint=checkpoint, on_round=stop)
    with pytest.raises(Stopped):
        learnt(images, PAD, runtime, config)
    runtime = Runtime(CUDA, precision=precision, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert_close(captured, learnt(images, PAD, runtime, config))
    if config.ema:
        last = learnt(images, PAD, Runtime(CUDA, precision=precision), replace(config, ema=0.0))
        assert not torch.allclose(last["conv1.weight"], captured["conv1.weight"], atol=1e-3)


def test_a_captured_step_sees_the_rate_change(stored: ImageSet) -> None:
    """With a rate of next to nothing from the second epoch on, the weights stay as they are."""
    images = stored.to(CUDA)
    runtime = Runtime(CUDA, precision="fp32")
    one = learnt(images, PAD, runtime, replace(CONFIG, epochs=1, milestones=()))
    two = learnt(images, PAD, runtime, replace(CONFIG, epochs=2, milestones=(1,), decay=1e-9))
    torch.testing.assert_close(one["conv1.weight"], two["conv1.weight"], rtol=1e-3, atol=1e-4)
    other = learnt(images, PAD, runtime, replace(CONFIG, epochs=2, milestones=()))
    assert not torch.allclose(one["conv1.weight"], other["conv1.weight"], atol=1e-3)


def test_each_replay_draws_anew() -> None:
    """Compare mean losses that are random numbers: each replay must sample new ones."""
    weight = torch.nn.Linear(1, 1).to(CUDA)

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        noise = torch.rand((), device=CUDA, generator=generator)
        return noise + 0 * weight(torch.ones(1, 1, device=CUDA)).sum()

    losses: dict[object, list[float]] = {}
    for accel in (EAGER, True):
        reports: list[Round] = []
        runtime = Runtime(CUDA, precision="fp32", accel=accel, on_round=reports.append)
        train_epochs(
            "noise",
            {"weight": weight},
            list(weight.parameters()),
            loss_of,
            4,
            EpochsConfig(epochs=6, batch=1),
            runtime,
            0,
        )
        losses[accel] = [r.loss for r in reports]
    assert len(set(losses[True])) == 6
    assert losses[True] == pytest.approx(losses[EAGER])


def test_each_replay_of_augmented_views_is_a_new_one(stored: ImageSet) -> None:
    """Compare sums of views, as losses: each replay draws as an eager step does, and anew."""
    images = stored.to(CUDA)
    weight = torch.nn.Linear(1, 1).to(CUDA)

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        view = augment.train_view(images, rows, SETS["randaugment"][1], generator)
        return view.square().mean() + 0 * weight(torch.ones(1, 1, device=CUDA)).sum()

    losses: dict[object, list[float]] = {}
    for accel in (EAGER, True):
        reports: list[Round] = []
        runtime = Runtime(CUDA, accel=accel, forbid_sync=True, on_round=reports.append)
        config = EpochsConfig(epochs=4, batch=80)
        parameters = list(weight.parameters())
        modules: dict[str, torch.nn.Module] = {"weight": weight}
        train_epochs("views", modules, parameters, loss_of, 80, config, runtime, 0)
        losses[accel] = [r.loss for r in reports]
    assert len(set(losses[True])) == 4
    assert losses[True] == pytest.approx(losses[EAGER])


# The same views as on a CPU


def test_operations_are_those_of_the_cpu(stored: ImageSet) -> None:
    random = torch.Generator().manual_seed(0)
    pixels = stored.storage[:75]  # type: ignore[index]
    kinds = torch.arange(75) % len(KINDS)
    strengths = torch.rand(75, generator=random) * 6
    here = apply_operations(pixels, kinds, strengths)
    there = apply_operations(*(t.to(CUDA) for t in (pixels, kinds, strengths)))
    different = (here != there.cpu()).flatten(1).float().mean(1)
    assert float(different.max()) < 0.05  # a source on the border of two pixels may go either way


def test_test_views_are_those_of_the_cpu(stored: ImageSet) -> None:
    backbone = build("resnet8", 0)
    both = replace(PAD, test_views=("plain", "flip", "rot90"))
    here = embed(backbone, stored, both)
    there = embed(backbone.to(CUDA), stored.to(CUDA), both)
    torch.testing.assert_close(here, there.cpu(), rtol=1e-3, atol=1e-4)


def test_views_are_those_of_the_cpu(stored: ImageSet) -> None:
    random = torch.Generator().manual_seed(0)
    n = len(stored)
    indices = torch.randperm(n, generator=random)
    down, right = torch.randint(-5, 6, (2, n), generator=random)
    flip = torch.rand(n, generator=random) < 0.5
    here = augment.pad_crop(stored, indices, down, right, flip, 16)
    there = augment.pad_crop(
        stored.to(CUDA), *(t.to(CUDA) for t in (indices, down, right, flip)), 16
    )
    assert torch.equal(here, there.cpu())

    large = much_larger(stored)
    for images, window in ((stored, None), (of_several_sizes(stored), None), (large, 99)):
        box = augment.sample_crop_boxes(*augment.image_shapes(images, indices), (0.2, 1.0), random)
        here = augment.resized_crop(images, indices, box, flip, 16, window=window)
        there = augment.resized_crop(
            images.to(CUDA), *(t.to(CUDA) for t in (indices, box, flip)), 16, window=window
        )
        torch.testing.assert_close(there.cpu(), here, rtol=0, atol=0.01)
        here = augment.test_view(images, indices, RESIZED)
        there = augment.test_view(images.to(CUDA), indices.to(CUDA), RESIZED)
        torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-3)
        assert there.is_contiguous(memory_format=torch.channels_last)


def test_turned_images_are_those_of_the_cpu() -> None:
    random = torch.Generator().manual_seed(0)
    batch = torch.randn(12, 3, 16, 16, generator=random)
    turns = torch.arange(12)
    assert torch.equal(
        augment.rotate90(batch, turns), augment.rotate90(batch.to(CUDA), turns.to(CUDA)).cpu()
    )
    degrees = 360 * torch.rand(12, generator=random)
    torch.testing.assert_close(
        augment.rotate(batch.to(CUDA), degrees.to(CUDA)).cpu(),
        augment.rotate(batch, degrees),
        rtol=0,
        atol=1e-3,
    )


def test_boxes_drawn_on_a_gpu_lie_inside() -> None:
    heights, widths = torch.randint(1, 300, (2, 5000), device=CUDA)
    top, left, h, w = augment.sample_crop_boxes(
        heights, widths, (0.08, 1.0), torch.Generator(CUDA).manual_seed(0)
    )
    assert bool(
        (
            (top >= 0)
            & (left >= 0)
            & (h >= 1)
            & (w >= 1)
            & (top + h <= heights)
            & (left + w <= widths)
        ).all()
    )


# The same numbers as on a CPU


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "resnet12", "resnet18", "resnet18-3x3"])
def test_a_step_on_a_gpu_is_the_step_on_a_cpu(name: str) -> None:
    """Features, gradients and statistics, in training and in evaluation.

    A value next to zero may fall on either side of a ReLU, which moves a gradient by far more than
    a rounding does. Gradients of PyTorch's own layers differ as much from those in float64: up to
    1.2e-2 in these networks.
    """
    batch = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = []
    for device in (torch.device("cpu"), CUDA):
        backbone = build(name).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        backbone.train()
        features = backbone(batch.to(device, memory_format=torch.channels_last))
        F.normalize(features).square().mul(
            torch.arange(features.shape[1], device=device)
        ).mean().backward()
        values = {"features": features.detach()}
        values |= {
            f"gradient of {key}": p.grad
            for key, p in backbone.named_parameters()
            if p.grad is not None
        }
        values |= {key: t for key, t in backbone.state_dict().items() if "running" in key}
        backbone.eval()
        with torch.no_grad():
            values["tested"] = backbone(batch.to(device, memory_format=torch.channels_last))
        found.append({key: value.cpu() for key, value in values.items()})
    cpu, gpu = found
    assert cpu.keys() == gpu.keys()
    for key, value in cpu.items():
        off = float((gpu[key] - value).norm() / value.norm().clamp(min=1e-12))
        assert off < (3e-2 if key.startswith("gradient") else 1e-3), f"{key}: {off}"


@pytest.mark.parametrize("encoder", ["all", "last"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_of_side_streams_are_those_of_the_backward_pass(
    stored: ImageSet, precision: str, encoder: str
) -> None:
    """Train both stages; with frozen statistics, batch norms use side streams too."""
    images = stored.to(CUDA)
    config = PseudoConfig(
        episodes=100,
        base_way=2,
        new_way=2,
        base_query=3,
        new_query=3,
        encoder=encoder,
        encoder_lr=0.002,
        lr=0.002,
    )
    found = []
    for exclusive in (True, False):
        runtime = Runtime(CUDA, precision=precision, exclusive=exclusive)
        backbone, classifier = untrained()
        pretrain(backbone, classifier, images, PAD, CONFIG, runtime, 0)
        adapter = Adapter(backbone.dim, generator=torch.Generator().manual_seed(0)).to(CUDA)
        pseudo_incremental(backbone, adapter, images, PAD, config, runtime, 0)
        found.append(
            {
                name: tensor.detach().cpu()
                for name, tensor in {**backbone.state_dict(), **adapter.state_dict()}.items()
            }
        )
    assert_close(*found)
    moved = (
        found[0]["layer1.0.conv1.weight"]
        - untrained()[0].state_dict()["layer1.0.conv1.weight"].cpu()
    )
    assert float(moved.abs().max()) > 1e-3


@pytest.mark.parametrize(
    "parts",
    [
        frozenset({"graphs"}),
        frozenset({"batch-norm", "graphs"}),
        frozenset({"max-pool", "graphs"}),
        frozenset({"conv", "side-streams", "graphs"}),
        True,
    ],
    ids=lambda parts: "all" if parts is True else ", ".join(sorted(parts)),
)
def test_a_large_network_learns_what_plain_pytorch_does(
    tiny_images: Callable[..., ImageSet], parts: bool | frozenset[str]
) -> None:
    """Train ResNet18 on images whose first maps are large, part by part of the fast path.

    One step: a difference of 1e-6 in the first layer's weights grows to 2 % in four.
    """
    images = tiny_images(4, 32, size=64).to(CUDA)
    transform = replace(PAD, size=64)
    config = replace(CONFIG, batch=len(images), epochs=1, milestones=())
    found = []
    for accel in (False, parts):
        backbone = build("resnet18").to(CUDA, memory_format=torch.channels_last)  # type: ignore[call-overload]
        initial = {name: t.detach().cpu() for name, t in backbone.state_dict().items()}
        prototypes = random_prototypes(4, backbone.dim, torch.Generator().manual_seed(0))
        classifier = Classifier("cosine", prototypes).to(CUDA)
        runtime = Runtime(CUDA, precision="fp32", accel=accel)
        pretrain(backbone, classifier, images, transform, config, runtime, 0)
        found.append({name: t.detach().cpu() for name, t in backbone.state_dict().items()})
    for name, tensor in found[0].items():
        moved = float((tensor - initial[name]).norm())
        off = float((found[1][name] - tensor).norm())
        assert off < 0.03 * moved, f"{name}: {off} of {moved}"


# Warm-up


def test_a_step_after_the_warm_up_compiles_nothing(tiny_images: Callable[..., ImageSet]) -> None:
    kernels = [
        value
        for module in (conv, batch_norm)
        for value in vars(module).values()
        if hasattr(value, "device_caches")
    ]
    for kernel in kernels:
        kernel.device_caches.clear()

    def compiled() -> list[int]:
        return [sum(len(cache[0]) for cache in kernel.device_caches.values()) for kernel in kernels]

    assert warm_up.WarmUp(warm_up.tasks(CUDA)).finish() is None
    before = compiled()
    assert sum(before) >= 15, "some kernels for several precisions and widths"
    images, transform, runtime = (
        tiny_images(4, 20, size=32).to(CUDA),
        replace(PAD, size=32),
        Runtime(CUDA),
    )
    backbone, classifier = untrained()
    pretrain(backbone, classifier, images, transform, CONFIG, runtime, 0)
    pseudo_incremental(
        backbone,
        Adapter(64).to(CUDA),
        images,
        transform,
        PseudoConfig(episodes=50, base_way=2, new_way=2, base_query=3, new_query=3),
        runtime,
        0,
    )
    embed(backbone, images, transform)
    assert compiled() == before


# Side by side


def test_runs_in_threads_learn_what_they_learn_alone(stored: ImageSet) -> None:
    """Each in its own stream and turns, as the runner has them."""
    images = stored.to(CUDA)
    torch.cuda.synchronize()

    def one(seed: int) -> dict[str, Tensor]:
        with share_gpu(CUDA):
            return learnt(images, PAD, Runtime(CUDA, precision="fp32"), seed=seed)

    alone = [one(seed) for seed in range(3)]
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(one, range(3)))
        for a, b in zip(alone, together, strict=True):
            assert_close(a, b)
    assert not torch.allclose(alone[0]["conv1.weight"], alone[1]["conv1.weight"])


@pytest.mark.parametrize("trying", [False, True])
def test_embedding_goes_on_while_another_thread_captures(
    stored: ImageSet, monkeypatch: pytest.MonkeyPatch, trying: bool
) -> None:
    """Also where cuDNN looks for its fastest kernel, which it does for every new shape."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", trying)
    images = stored.to(CUDA)
    backbone, _ = untrained()
    expected = embed(backbone, images, PAD)
    torch.cuda.synchronize()

    def embed_often(_: int) -> bool:
        with share_gpu(CUDA):
            parts = [
                (n, embed(backbone, images.select(torch.arange(n, device=CUDA)), PAD))
                for n in range(30, 80)
            ]
            return all(torch.allclose(features, expected[:n], atol=1e-3) for n, features in parts)

    def capture_often(_: int) -> bool:
        with share_gpu(CUDA):
            for seed in range(10):
                learnt(images, PAD, Runtime(CUDA), replace(CONFIG, epochs=1), seed)
        return True

    backbone.eval()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(work, 0) for work in (embed_often, capture_often, capture_often)]
        assert all(future.result() for future in futures)


@pytest.mark.parametrize(
    "method", ["decoupled-cosine", "finetune", "cec", "icarl", "eeil", "lucir", "topic"]
)
def test_an_experiment_of_several_seeds_side_by_side(
    tmp_path: Path, tiny_task: Task, tiny_recipe_for: Callable[[str], Recipe], method: str
) -> None:
    recipe = override(tiny_recipe_for(method), {"pretrain": {"epochs": 6, "lr": 0.01}})
    if method == "cec":
        pseudo = PseudoConfig(episodes=100, base_way=2, new_way=2, base_query=3, new_query=3)
        recipe = override(recipe, {"method": {"pseudo": pseudo}})
    experiment = Experiment("tiny", method, recipe, seeds=(0, 1, 2))
    accuracy = []
    for parallel in (1, 3):
        folder = tmp_path / str(parallel)
        folder.mkdir()
        options = runner.RunOptions(CUDA, parallel=parallel)
        [result] = runner.run_plans([runner.Plan(experiment, folder)], tiny_task, options)
        accuracy.append(result.accuracy)
        assert all((folder / f"seed{seed}" / "model.safetensors").exists() for seed in range(3))
    one_by_one, together = map(torch.tensor, accuracy)
    assert one_by_one.shape == (3, 3)
    assert float(one_by_one[:, 0].min()) > 50  # four classes: chance is 25
    assert float((one_by_one - together).abs().mean()) < 10


def test_a_stopped_run_goes_on_with_captured_steps(tmp_path: Path, stored: ImageSet) -> None:
    from fewmore.training.checkpoint import Checkpoint

    class Stopped(Exception):
        pass

    def stop(report: Round) -> None:
        if report.round == 3:
            raise Stopped

    images = stored.to(CUDA)
    config = replace(CONFIG, epochs=4)
    whole = learnt(images, PAD, Runtime(CUDA, precision="fp32"), config)
    with pytest.raises(Stopped):
        learnt(
            images,
            PAD,
            Runtime(
                CUDA, precision="fp32", checkpoint=Checkpoint(tmp_path / "c", 0), on_round=stop
            ),
            config,
        )
    resumed = learnt(
        images,
        PAD,
        Runtime(CUDA, precision="fp32", checkpoint=Checkpoint(tmp_path / "c", 0)),
        config,
    )
    assert_close(whole, resumed)
