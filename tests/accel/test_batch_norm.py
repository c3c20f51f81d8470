"""Batch norm with shortcut and ReLU: the same as the three layers one after the other, on a CPU and as one operation on a GPU."""

from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.accel import batch_norm as norm
from fewmore.accel.batch_norm import BatchNorm

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


def outcome(
    layer: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, gradient: Tensor, relu: bool
) -> dict[str, Tensor]:
    """The result, all gradients and the statistics, after one step forwards and backwards."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    shortcut = (
        None
        if shortcut is None
        else shortcut.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    )
    before = x.detach().clone()
    out = (
        layer(x, shortcut, relu)
        if isinstance(layer, BatchNorm)
        else three_layers(layer, x, shortcut, relu)
    )
    assert torch.equal(x.detach(), before), "the input was written to"
    out.backward(gradient)
    found = {
        "result": out.detach(),
        "gradient of x": x.grad,
        "running_mean": layer.running_mean,
        "running_var": layer.running_var,
    }
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
        torch.testing.assert_close(
            ours[name], tensor, msg=lambda text, name=name: f"{name}: {text}"
        )


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


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    for mark in (
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
        pytest.mark.filterwarnings(
            "default"
        ),  # drivers and compilers warn of things that are not ours
    ):
        test = mark(test)
    return test


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows each time that the one operation is taken. TF32 is off, so that results can be compared closely."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    taken: list[bool] = []
    apply = norm._Fused.apply
    monkeypatch.setattr(norm._Fused, "apply", lambda *args: (taken.append(True), apply(*args))[1])
    return taken


def there(
    tensors: Iterable[Tensor | None], memory_format: torch.memory_format = torch.channels_last
) -> list[Tensor | None]:
    return [
        None if t is None else t.cuda().contiguous(memory_format=memory_format) for t in tensors
    ]


def layers(channels: int, training: bool = True) -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    """Ours and PyTorch's, with the same weights."""
    ours, theirs = (
        random_weights(layer).cuda().train(training)
        for layer in (BatchNorm(channels), nn.BatchNorm2d(channels))
    )
    return ours, theirs


def assert_close(ours: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Each tensor to the tolerance, relative to its largest number: a sum of many is not known better than that."""
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        size = float(tensor.abs().max())
        torch.testing.assert_close(
            ours[name].to(tensor),
            tensor,
            rtol=tolerance,
            atol=tolerance * size,
            msg=lambda text, name=name: f"{name}: {text}",
        )


# Pixels that do not fill a program, that fill several, one an image, more than the groups take in a turn; one to three blocks of channels.
SHAPES = [(3, 16, 5, 7), (5, 48, 17, 13), (13, 32, 1, 1), (11, 16, 57, 59)]


@on_gpu
@training
@relu
@shortcut
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_one_operation_is_the_three_layers(
    fused: list[bool], shape: tuple[int, ...], training: bool, relu: bool, shortcut: bool
) -> None:
    arguments = there(inputs(shape, shortcut))
    ours, theirs = layers(shape[1], training)
    assert_close(outcome(ours, *arguments, relu), outcome(theirs, *arguments, relu), 1e-4)
    assert fused == [True]


@on_gpu
@training
def test_the_one_operation_sums_bfloat16_in_float32(fused: list[bool], training: bool) -> None:
    """What differs from float32 is the rounding of what goes out; a ReLU would tip over at it."""
    arguments = [t.bfloat16() for t in there(inputs((5, 32, 17, 13), True)) if t is not None]
    ours, theirs = layers(32, training)
    found = outcome(ours, *arguments, relu=False)
    assert found["result"].dtype == torch.bfloat16
    assert found["gradient of weight"].dtype == torch.float32
    assert_close(found, outcome(theirs, *(t.float() for t in arguments), relu=False), 1e-2)
    assert fused == [True]


@on_gpu
def test_the_one_operation_repeats_bit_for_bit() -> None:
    arguments = there(inputs(SHAPES[-1], True))
    one, again = (outcome(layers(16)[0], *arguments, relu=True) for _ in range(2))
    assert all(torch.equal(one[name], again[name]) for name in one)


@on_gpu
@pytest.mark.parametrize(
    ("channels", "memory_format"),
    [(16, torch.contiguous_format), (24, torch.channels_last)],
    ids=["other layout", "other width"],
)
def test_what_the_one_operation_cannot_do_is_done_by_three(
    fused: list[bool], channels: int, memory_format: torch.memory_format
) -> None:
    arguments = there(inputs((4, channels, 6, 5), True), memory_format)
    ours, theirs = layers(channels)
    assert_close(outcome(ours, *arguments, relu=True), outcome(theirs, *arguments, relu=True), 1e-4)
    assert fused == []


@shortcut
def test_ghost_statistics_are_those_of_parts_of_the_batch(shortcut: bool) -> None:
    x, other, _ = inputs((6, 6, 4, 3), shortcut)
    whole, parts = random_weights(BatchNorm(6)), random_weights(BatchNorm(6))
    norm.set_ghost(nn.Sequential(whole), 4)
    expected = [
        parts(x[rows], None if other is None else other[rows], relu=True)
        for rows in (slice(0, 4), slice(4, 6))
    ]
    assert torch.equal(whole(x, other, relu=True), torch.cat(expected))
    assert torch.equal(whole.running_mean, parts.running_mean)
    whole.eval()
    parts.eval()
    assert torch.equal(whole(x, other), parts(x, other)), "in testing there are no parts"
