"""Test that two processes learn what one learns: gloo on the CPU, in float64.

The same function runs in one process and in two, which write what they found into files.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.nn.backbones import Backbone, build
from fewmore.nn.layers import set_ghost_batch_size
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training import distributed
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.fast_path import why_plain
from fewmore.training.loop import shuffled_batches, train
from fewmore.training.mixing import mixup
from fewmore.training.momentum import MomentumEncoder, Queue
from fewmore.training.optimizer import OptimizerConfig, ParameterGroup
from fewmore.training.runtime import Round, Runtime
from fewmore.training.sync_batch_norm import SyncedBatchNorms

CLASSES = 5
IMAGES = 48
# One step at rate 1 without momentum: weights move by their gradients.
ONE_STEP = OptimizerConfig(lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0)
SEVERAL_STEPS = OptimizerConfig(lr=0.05, ema=0.9)
ROUNDS = 4

Tensors = dict[str, Tensor]


class Outer(Backbone):
    """Hold another backbone, as a user's own may do."""

    def __init__(self, inner: Backbone) -> None:
        super().__init__()
        self.inner = inner
        self.dim = inner.dim

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)


class Network:
    """Hold a small network in float64, and all that its training changes beside it."""

    def __init__(self, nested: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.backbone: Backbone = build("resnet8", 0).double().train()
        if nested:
            self.backbone = Outer(self.backbone)
        prototypes = random_prototypes(CLASSES, self.backbone.dim, generator)
        self.classifier = Classifier("cosine", prototypes).double()
        self.slow = MomentumEncoder(self.backbone, 0.9)
        self.queue = Queue(12, self.backbone.dim, generator)
        self.unused = nn.Linear(3, 3).double()
        nn.init.ones_(self.unused.weight)
        nn.init.ones_(self.unused.bias)
        self.images = torch.randn(IMAGES, 3, 12, 12, generator=generator, dtype=torch.float64)
        self.labels = torch.arange(IMAGES) % CLASSES
        self.seen: list[Tensor] = []

    def modules(self) -> dict[str, nn.Module]:
        """Return all modules by name."""
        names = ("backbone", "classifier", "slow", "queue", "unused")
        return {name: getattr(self, name) for name in names}

    def loss(self, indices: Tensor, generator: Generator) -> Tensor:
        """Compute a loss in which every image of a batch meets every other one."""
        noise = torch.rand(len(indices), 1, 1, 1, generator=generator, dtype=torch.float64)
        mixed = mixup(self.images[indices] + noise, self.labels[indices], 1.0, generator)
        self.seen.append(mixed.view.detach())
        features = self.backbone(mixed.view)
        others, _ = self.queue.read()
        self.slow.update()
        self.queue.add(self.slow(mixed.view), mixed.labels)
        everyone = torch.cat([F.normalize(features), others.double()])
        closeness = (F.normalize(features) @ everyone.T).square().mean()
        return mixed.cross_entropy(self.classifier(features)) + closeness

    def train(
        self,
        batch: int = 16,
        steps: int = 1,
        config: OptimizerConfig = ONE_STEP,
        rounds: int = 1,
        runtime: Runtime | None = None,
    ) -> Tensors:
        """Train, and return all tensors, and the sums of the views that were seen."""
        modules = self.modules()
        parameters = [p for m in modules.values() for p in m.parameters() if p.requires_grad]
        train(
            "stage",
            modules,
            [ParameterGroup(parameters)],
            self.loss,
            lambda generator: shuffled_batches(IMAGES, batch, generator)[:steps],
            rounds,
            config,
            runtime or Runtime(),
            seed=3,
        )
        named = {f"{n}.{k}": t for n, m in modules.items() for k, t in m.state_dict().items()}
        return {**named, "seen": torch.stack(self.seen)} if self.seen else named


def ghost_step(ghost: int, batch_norm: str) -> Tensors:
    """Train a step with statistics of batch norm over parts of a batch."""
    network = Network()
    for part in (network.backbone, network.slow):
        set_ghost_batch_size(part, ghost)
    return network.train(runtime=Runtime(batch_norm=batch_norm))


class Stopped(Exception):
    """Stop a training in the middle."""


def stopped_training(folder: Path, file: str, stop: bool) -> Tensors:
    """Train until it is stopped after two rounds, or go on from there."""

    def on_round(report: Round) -> None:
        if stop and report.round == ROUNDS // 2 + 1:
            raise Stopped

    checkpoint = Checkpoint(folder / file, every=0.0)
    runtime = Runtime(checkpoint=checkpoint, on_round=on_round)
    network = Network()
    try:
        found = network.train(steps=2, config=SEVERAL_STEPS, rounds=ROUNDS, runtime=runtime)
    except Stopped:
        return {}
    del found["seen"]
    return found


CASES: dict[str, Callable[[], Tensors]] = {
    "one step": lambda: Network().train(),
    "uneven parts": lambda: Network().train(batch=17),
    "too few to split": lambda: Network().train(batch=3),
    "a backbone in another": lambda: Network(nested=True).train(),
    "several steps": lambda: Network().train(steps=3, config=SEVERAL_STEPS),
}


def process(rank: int, folder: Path) -> None:
    """Compute all cases in one of two processes; both write what they found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    found: dict[str, Any] = {name: compute() for name, compute in CASES.items()}
    found["local"] = ghost_step(0, "local")
    found["ghost"] = ghost_step(8, "sync")
    own = folder / f"own{rank}"  # the second process has no checkpoint to read
    own.mkdir()
    stopped_training(own, "two.safetensors", stop=True)
    (own / "one.safetensors").symlink_to(folder / "one.safetensors" if rank == 0 else "missing")
    found["resumed"] = stopped_training(own, "one.safetensors", stop=False)
    found["record"] = Runtime(batch_norm="local").describe()
    cuda = Runtime(torch.device("cuda"), precision="fp32")
    found["accel"] = (why_plain(cuda), cuda.notes())
    found["from_first"] = distributed.from_first(lambda: {"rank": rank})
    torch.save(found, folder / f"found{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Let two processes compute all cases."""
    folder = tmp_path_factory.mktemp("processes")
    stopped_training(folder, "one.safetensors", stop=True)
    mp.spawn(process, (folder,), nprocs=2)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """Return what the two processes found."""
    return [torch.load(folder / f"found{rank}.pt") for rank in (0, 1)]


def assert_close(found: Tensors, expected: Tensors, *but: str) -> None:
    """Compare tensors by name, to rounding in float64; those of queues are in float32."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if not any(part in name for part in but):
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_learns(found: list[dict[str, Any]], case: str) -> None:
    expected = CASES[case]()
    for own in found:
        assert_close(own[case], expected)
        assert torch.equal(own[case]["seen"], expected["seen"])


def test_a_parameter_that_no_loss_uses_stays(found: list[dict[str, Any]]) -> None:
    assert torch.equal(found[0]["several steps"]["unused.weight"], torch.ones(3, 3).double())


def test_local_batch_norm_is_that_of_a_part_of_the_batch(found: list[dict[str, Any]]) -> None:
    expected = ghost_step(8, "sync")
    for case in ("local", "ghost"):
        assert_close(found[0][case], expected, "running_")
        assert_close(found[1][case], found[0][case])  # statistics are averaged
    whole = Network().train()["backbone.conv1.weight"]
    assert not torch.allclose(found[0]["local"]["backbone.conv1.weight"], whole)


def test_a_checkpoint_goes_on_with_another_number_of_processes(
    folder: Path, found: list[dict[str, Any]], tmp_path: Path
) -> None:
    expected = stopped_training(tmp_path, "whole.safetensors", stop=False)
    assert_close(found[0]["resumed"], expected)
    assert_close(found[1]["resumed"], expected)
    assert not (folder / "own1" / "two.safetensors").exists()  # the first process alone writes
    assert_close(stopped_training(folder / "own0", "two.safetensors", stop=False), expected)


def test_what_processes_know_of_each_other(found: list[dict[str, Any]]) -> None:
    for own in found:
        assert own["from_first"] == {"rank": 0}
        assert own["record"]["world_size"] == 2
        assert own["record"]["batch_norm"] == "local"


def test_the_fast_path_steps_aside_and_says_so(found: list[dict[str, Any]]) -> None:
    reason, notes = found[0]["accel"]
    assert reason == "it is for one process, and there are 2"
    assert notes == ["2 processes train as plain PyTorch: the GPU fast path is for one"]


@pytest.mark.parametrize(
    ("images", "ghost", "parts"),
    [
        (16, 0, [(0, 5), (5, 10), (10, 16)]),
        (6, 0, [(0, 2), (2, 4), (4, 6)]),
        (5, 0, None),
        (26, 4, [(0, 8), (8, 16), (16, 26)]),
        (10, 4, None),
    ],
)
def test_parts_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
    images: int,
    ghost: int,
    parts: list[tuple[int, int]] | None,
) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    for rank in range(3):
        monkeypatch.setattr(dist, "get_rank", partial(int, rank))
        own = distributed.own_part(images, ghost)
        assert own == (None if parts is None else slice(*parts[rank]))


def normalize_on_gpu(rank: int, folder: Path) -> None:
    """Normalize half of a batch on a GPU that two processes share, and write the results."""
    dist.init_process_group("gloo", f"file://{folder}/gpu-meeting", rank=rank, world_size=2)
    layer, images = norm_and_images()
    part = images[5 * rank : 5 + 6 * rank].clone().requires_grad_()
    with SyncedBatchNorms():
        out = layer(part)
    out.square().sum().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    torch.save(
        [t.cpu() for t in (out.detach(), part.grad, *gradients, *layer.buffers())],
        folder / f"gpu{rank}.pt",
    )
    dist.destroy_process_group()


def norm_and_images() -> tuple[nn.BatchNorm2d, Tensor]:
    """Return a layer and a batch that cannot be halved."""
    images = torch.randn(11, 4, 3, 3, generator=torch.Generator().manual_seed(0)) + 2
    return nn.BatchNorm2d(4).cuda(), images.cuda()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
def test_batch_norm_over_processes_on_a_gpu(tmp_path: Path) -> None:
    mp.spawn(normalize_on_gpu, (tmp_path,), nprocs=2)
    first, second = (torch.load(tmp_path / f"gpu{rank}.pt") for rank in (0, 1))
    layer, images = norm_and_images()
    images.requires_grad_()
    out = layer(images)
    out.square().sum().backward()
    assert images.grad is not None
    expected = [t.detach().cpu() for t in (out, images.grad)]
    for number, tensor in enumerate(expected):
        torch.testing.assert_close(torch.cat([first[number], second[number]]), tensor)
    weight, bias = (p.grad.cpu() for p in layer.parameters() if p.grad is not None)
    torch.testing.assert_close(first[2] + second[2], weight)
    torch.testing.assert_close(first[3] + second[3], bias, atol=1e-4, rtol=1e-4)
    for own in (first, second):
        torch.testing.assert_close(own[4], layer.running_mean.cpu())
        torch.testing.assert_close(own[5], layer.running_var.cpu())


def test_one_process_leaves_the_loss_as_it_is() -> None:
    network = Network()
    with distributed.split_batches(network.modules(), "sync") as processes:
        assert processes.wrap(network.loss) == network.loss
    assert "forward" not in vars(network.backbone)
