"""Batch norm with shortcut and ReLU: the same as the three layers one after the other, on a CPU and as one operation on a GPU."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cecil.nn import norm
from cecil.nn.norm import BatchNorm

training = pytest.mark.parametrize("training", [True, False], ids=["training", "testing"])
relu = pytest.mark.parametrize("relu", [True, False], ids=["relu", "no relu"])
shortcut = pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "no shortcut"])


def random_weights(layer: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """A layer that has seen something already."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean):
            assert tensor is not None
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        assert layer.running_var is not None
        layer.running_var.copy_(torch.rand(layer.running_var.shape, generator=generator) + 0.5)
    return layer


def inputs(shape: tuple[int, ...], shortcut: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Maps with channels of their own mean and spread, perhaps a shortcut, and a gradient to go back with."""
    generator = torch.Generator().manual_seed(1)
    channels = torch.arange(shape[1])[None, :, None, None] / shape[1]
    x = torch.randn(shape, generator=generator) * (0.5 + channels) + channels
    other, gradient = torch.randn(2, *shape, generator=generator)
    return x, other if shortcut else None, gradient


def three_layers(layer: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, relu: bool) -> Tensor:
    out: Tensor = layer(x)
    if shortcut is not None:
        out = out + shortcut
    return F.relu(out) if relu else out


def outcome(layer: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, gradient: Tensor, relu: bool) -> dict[str, Tensor]:
    """The result, all gradients and the statistics, after one step forwards and backwards."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    shortcut = None if shortcut is None else shortcut.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    before = x.detach().clone()
    out = layer(x, shortcut, relu) if isinstance(layer, BatchNorm) else three_layers(layer, x, shortcut, relu)
    assert torch.equal(x.detach(), before), "the input was written to"
    out.backward(gradient)
    found = {"result": out.detach(), "gradient of x": x.grad, "running_mean": layer.running_mean, "running_var": layer.running_var}
    found |= {f"gradient of {name}": p.grad for name, p in layer.named_parameters()}
    if shortcut is not None:
        found["gradient of shortcut"] = shortcut.grad
    assert all(tensor is not None for tensor in found.values())
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@training
@relu
@shortcut
def test_it_is_the_three_layers(training: bool, relu: bool, shortcut: bool) -> None:
    arguments = inputs((5, 6, 4, 3), shortcut)
    ours = outcome(random_weights(BatchNorm(6)).train(training), *arguments, relu)
    expected = outcome(random_weights(nn.BatchNorm2d(6)).train(training), *arguments, relu)
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(ours[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


def test_statistics_move_in_training_alone() -> None:
    x, _, _ = inputs((5, 6, 4, 3), False)
    layer = BatchNorm(6)
    assert layer.running_mean is not None
    layer.eval()(x)
    assert torch.equal(layer.running_mean, torch.zeros(6))
    layer.train()(x)
    torch.testing.assert_close(layer.running_mean, 0.1 * x.mean((0, 2, 3)))


def test_its_state_is_a_batch_norms_without_the_counter() -> None:
    ours, theirs = BatchNorm(4).state_dict(), nn.BatchNorm2d(4).state_dict()
    assert list(ours) == ["weight", "bias", "running_mean", "running_var"]
    assert ours.keys() == theirs.keys() - {"num_batches_tracked"}
    other = BatchNorm(4)
    other.load_state_dict(random_weights(BatchNorm(4)).state_dict())
    assert torch.equal(other.weight, random_weights(BatchNorm(4)).weight)


# As one operation

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers warn of things that are not ours
]


@pytest.fixture
def full_precision() -> Iterator[None]:
    """Without TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


# Pixels that fill no program, more than all groups take in one turn, and a single row; channels in one block and in three.
SHAPES = [(3, 16, 5, 7), (5, 48, 17, 13), (1, 16, 1, 2), (13, 32, 1, 1), (11, 16, 57, 59)]


def compared(ours: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Each tensor to the tolerance, relative to its largest number: a sum of many is not known better than that."""
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        size = float(tensor.float().abs().max())
        torch.testing.assert_close(
            ours[name].float(), tensor.float(), rtol=tolerance, atol=tolerance * size, msg=lambda text, name=name: f"{name}: {text}"
        )


def fused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes each time that the one operation is taken."""
    taken: list[bool] = []
    apply = norm._Fused.apply
    monkeypatch.setattr(norm._Fused, "apply", lambda *args: (taken.append(True), apply(*args))[1])
    return taken


class TestFused:
    pytestmark = gpu

    @training
    @relu
    @shortcut
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_it_is_the_three_layers(
        self, monkeypatch: pytest.MonkeyPatch, full_precision: None, shape: tuple[int, ...], training: bool, relu: bool, shortcut: bool
    ) -> None:
        taken = fused(monkeypatch)
        arguments = [None if t is None else t.cuda().contiguous(memory_format=torch.channels_last) for t in inputs(shape, shortcut)]
        ours = outcome(random_weights(BatchNorm(shape[1])).cuda().train(training), *arguments, relu)
        assert taken == [True]
        expected = outcome(random_weights(nn.BatchNorm2d(shape[1])).cuda().train(training), *arguments, relu)
        compared(ours, expected, 1e-4)

    @training
    def test_in_bfloat16(self, monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
        """Sums are float32's: what differs from float32 is the rounding of what comes in and goes out."""
        taken = fused(monkeypatch)
        x, shortcut, gradient = (
            t.cuda().bfloat16().contiguous(memory_format=torch.channels_last) for t in inputs((5, 32, 17, 13), True) if t is not None
        )
        ours = outcome(random_weights(BatchNorm(32)).cuda().train(training), x, shortcut, gradient, False)
        assert taken == [True]
        assert ours["result"].dtype == torch.bfloat16
        layer = random_weights(nn.BatchNorm2d(32)).cuda().train(training)
        expected = outcome(layer, x.float(), shortcut.float(), gradient.float(), False)
        compared(ours, expected, 1e-2)

    def test_it_repeats(self) -> None:
        """Sums are added in a fixed order: the same bits every time."""
        arguments = [None if t is None else t.cuda().contiguous(memory_format=torch.channels_last) for t in inputs(SHAPES[-1], True)]
        one, again = (outcome(random_weights(BatchNorm(16)).cuda(), *arguments, True) for _ in range(2))
        assert all(torch.equal(one[name], again[name]) for name in one)

    @pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
    @pytest.mark.parametrize("channels", [16, 24])
    def test_other_layouts_and_widths_take_the_three_layers(
        self, monkeypatch: pytest.MonkeyPatch, memory_format: torch.memory_format, channels: int
    ) -> None:
        taken = fused(monkeypatch)
        arguments = [None if t is None else t.cuda().contiguous(memory_format=memory_format) for t in inputs((4, channels, 6, 5), True)]
        ours = outcome(random_weights(BatchNorm(channels)).cuda(), *arguments, True)
        assert bool(taken) == (channels == 16 and memory_format == torch.channels_last)
        compared(ours, outcome(random_weights(nn.BatchNorm2d(channels)).cuda(), *arguments, True), 1e-4)
