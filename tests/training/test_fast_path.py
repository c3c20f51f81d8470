"""Test the seam between training and the optional GPU fast path, without a GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training import fast_path
from fewmore.training.fast_path import (
    Eager,
    Step,
    accelerate,
    share_gpu,
    start_warm_up,
    why_plain,
    yield_gpu,
)
from fewmore.training.learn_session import SessionConfig, train_network
from fewmore.training.loop import train
from fewmore.training.optimizer import OptimizerConfig, ParameterGroup
from fewmore.training.pretrain import PretrainConfig, pretrain
from fewmore.training.pseudo_incremental import PseudoConfig, pseudo_incremental
from fewmore.training.runtime import Runtime

CUDA = torch.device("cuda")


# Which engine runs the steps


def test_a_cpu_gets_the_eager_engine_and_keeps_its_layers() -> None:
    network = build("resnet8")
    before = [type(part) for part in network.modules()]
    with accelerate({"network": network}, Runtime()) as engine:
        assert isinstance(engine, Eager)
        assert [type(part) for part in network.modules()] == before


def test_the_eager_engine_returns_the_step_itself() -> None:
    engine = Eager()

    def step(row: Tensor) -> None:
        raise AssertionError("a capture must not run it")

    assert engine.capture(step, torch.zeros(1), [], Generator()) is step
    with engine.forward():
        engine.finish_backward()


@pytest.mark.parametrize("accel", [True, False])
def test_on_a_cpu_the_reason_is_the_device(accel: bool) -> None:
    assert "cpu" in str(why_plain(Runtime(accel=accel)))


def test_on_a_gpu_the_reason_is_the_switch_or_the_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_path, "accel", object())
    assert why_plain(Runtime(CUDA)) is None
    assert why_plain(Runtime(CUDA, accel=frozenset({"graphs"}))) is None
    for switched_off in (False, frozenset[str]()):
        assert "switched off" in str(why_plain(Runtime(CUDA, accel=switched_off)))
    monkeypatch.setattr(fast_path, "accel", None)
    assert "not installed" in str(why_plain(Runtime(CUDA)))


def test_a_gpu_gets_the_eager_engine_where_the_fast_path_is_off_or_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with accelerate({}, Runtime(CUDA, accel=False)) as engine:
        assert isinstance(engine, Eager)
    monkeypatch.setattr(fast_path, "accel", None)
    with accelerate({}, Runtime(CUDA)) as engine:
        assert isinstance(engine, Eager)


# Without the package


def test_without_the_package_warm_up_and_sharing_do_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_path, "accel", None)
    start_warm_up(CUDA)
    with share_gpu(CUDA), yield_gpu():
        pass


def three_stages(images: ImageSet, transform: Transform) -> dict[str, Tensor]:
    """Train the three stages on a CPU, and return all that was learnt."""
    backbone = build("resnet8")
    classifier = Classifier("cosine", random_prototypes(4, 64, Generator().manual_seed(0)))
    adapter = Adapter(64, generator=Generator().manual_seed(0))
    runtime = Runtime()
    stage_1 = PretrainConfig(epochs=1, batch=8)
    pretrain(backbone, classifier, images, transform, stage_1, runtime, 0)
    stage_2 = PseudoConfig(episodes=1, base_way=2, new_way=2, base_query=2, new_query=2)
    pseudo_incremental(backbone, adapter, images, transform, stage_2, runtime, 0)
    stage_3 = SessionConfig(epochs=1, batch=8)
    train_network(backbone, classifier, images, transform, stage_3, runtime, 0, "session 1")
    return {
        f"{name}.{key}": tensor
        for name, module in (("backbone", backbone), ("head", classifier), ("adapter", adapter))
        for key, tensor in module.state_dict().items()
    }


def test_without_the_package_everything_trains_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
) -> None:
    monkeypatch.setattr("fewmore.training.pseudo_incremental.ROUND", 2)
    with_it = three_stages(tiny_images(), tiny_transform)
    monkeypatch.setattr(fast_path, "accel", None)
    without = three_stages(tiny_images(), tiny_transform)
    assert all(torch.equal(with_it[name], without[name]) for name in with_it)


# How the loop uses an engine


class RecordingEngine:
    """Run steps as they are written, and record the calls of the loop."""

    optimizer_class = torch.optim.SGD

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.state: list[Tensor] = []

    @contextmanager
    def forward(self) -> Iterator[None]:
        self.calls.append("forward")
        yield

    def finish_backward(self) -> None:
        self.calls.append("finish backward")

    def capture(
        self, step: Step, example: Tensor, state: Sequence[Tensor], generator: Generator
    ) -> Step:
        self.calls.append("capture")
        self.state = list(state)

        def captured(row: Tensor) -> None:
            self.calls.append("step")
            step(row)

        return captured


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> RecordingEngine:
    """Put an engine in the fast path's place, and let it be used on a CPU too."""
    recording = RecordingEngine()

    @contextmanager
    def fake_accelerate(modules: object, runtime: Runtime) -> Iterator[RecordingEngine]:
        recording.calls.append("layers swapped in")
        yield recording
        recording.calls.append("layers swapped back")

    fake = SimpleNamespace(accelerate=fake_accelerate, yield_gpu=contextmanager(lambda: (yield)))
    monkeypatch.setattr(fast_path, "accel", fake)
    monkeypatch.setattr(fast_path, "why_plain", lambda runtime: None)
    return recording


def train_linear(net: nn.Linear) -> None:
    """Train a layer for two rounds of one step with one loss, and one round with another."""
    inputs = torch.arange(8.0).view(2, 4)

    def loss_of(row: Tensor, generator: Generator) -> Tensor:
        return F.mse_loss(net(inputs[row]), torch.zeros(1, 1))

    train(
        "stage",
        {"net": net},
        [ParameterGroup(list(net.parameters()))],
        {0: loss_of, 2: loss_of},
        lambda generator: torch.randint(0, 2, (1, 1), generator=generator),
        3,
        OptimizerConfig(lr=0.01),
        Runtime(),
        0,
    )


def test_the_loop_runs_its_steps_by_the_engine(engine: RecordingEngine) -> None:
    train_linear(nn.Linear(4, 1))
    step = ["step", "forward", "finish backward"]
    trained = ["capture", *step, *step, "capture", *step]  # each loss is captured once
    assert engine.calls == ["layers swapped in", *trained, "layers swapped back"]


def test_an_engine_gets_every_tensor_that_a_step_changes(engine: RecordingEngine) -> None:
    net = nn.Linear(4, 1)
    train_linear(net)
    addresses = {tensor.data_ptr() for tensor in engine.state}
    assert {p.data_ptr() for p in net.parameters()} <= addresses
    # Two parameters, their momentum buffers, and the sum of the losses.
    assert len(engine.state) == 5


def test_an_engine_changes_nothing_in_what_is_learnt(
    engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    nets = [nn.Linear(4, 1), nn.Linear(4, 1)]
    nets[1].load_state_dict(nets[0].state_dict())
    train_linear(nets[0])
    monkeypatch.setattr(fast_path, "why_plain", lambda runtime: "switched off")
    used = len(engine.calls)
    train_linear(nets[1])
    assert len(engine.calls) == used > 0
    assert torch.equal(nets[0].weight, nets[1].weight)
