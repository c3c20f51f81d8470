"""Test that the fused batch norm on a GPU is the three layers one after the other."""

from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.accel import batch_norm
from fewmore.accel.batch_norm import FusedBatchNormAct2d

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers warn of things that are not ours
]
training = pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
relu = pytest.mark.parametrize("relu", [True, False], ids=["relu", "no relu"])
shortcut = pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "no shortcut"])


def randomize(layer: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """Give a layer weights and statistics that are not the initial ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        layer.running_var.copy_(torch.rand(layer.running_var.shape, generator=generator) + 0.5)
    return layer


def make_inputs(
    shape: tuple[int, ...],
    shortcut: bool,
    memory_format: torch.memory_format = torch.channels_last,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Make maps whose channels differ in mean and std, perhaps a shortcut, and a gradient."""
    generator = torch.Generator().manual_seed(1)
    channels = torch.arange(shape[1])[None, :, None, None] / shape[1]
    x = torch.randn(shape, generator=generator) * (0.5 + channels) + channels
    other, grad = torch.randn(2, *shape, generator=generator)
    x, other, grad = (t.cuda().contiguous(memory_format=memory_format) for t in (x, other, grad))
    return x, other if shortcut else None, grad


def make_layers(
    channels: int, relu: bool = True, training: bool = True
) -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    """Make ours and PyTorch's layer, with the same weights."""
    ours = randomize(FusedBatchNormAct2d(channels, relu)).cuda().train(training)
    theirs = randomize(nn.BatchNorm2d(channels)).cuda().train(training)
    return ours, theirs


def three_layers(layer: nn.BatchNorm2d, relu: bool) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return batch norm, shortcut and ReLU one after the other."""

    def forward(x: Tensor, shortcut: Tensor | None) -> Tensor:
        out: Tensor = layer(x)
        if shortcut is not None:
            out = out + shortcut
        return F.relu(out) if relu else out

    return forward


def run(
    layer: nn.BatchNorm2d,
    forward: Callable[[Tensor, Tensor | None], Tensor],
    inputs: Iterable[Tensor | None],
) -> dict[str, Tensor]:
    """Return the output, all gradients and the statistics of a forward and a backward pass."""
    x, shortcut, grad = inputs
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    if shortcut is not None:
        shortcut = shortcut.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    before = x.detach().clone()
    out = forward(x, shortcut)
    assert torch.equal(x.detach(), before), "the input was written to"
    out.backward(grad)
    found = {
        "output": out.detach(),
        "gradient of x": x.grad,
        "running_mean": layer.running_mean,
        "running_var": layer.running_var,
        **{f"gradient of {name}": p.grad for name, p in layer.named_parameters()},
    }
    if shortcut is not None:
        found["gradient of shortcut"] = shortcut.grad
    assert all(tensor is not None for tensor in found.values())
    return found


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each fused call; TF32 is off, to compare results closely."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    calls: list[bool] = []
    apply = batch_norm._Fused.apply

    def counted(*args: object) -> Tensor:
        calls.append(True)
        return apply(*args)

    monkeypatch.setattr(batch_norm._Fused, "apply", counted)
    return calls


def assert_close(ours: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Compare tensors relative to their largest number: a sum of many is not known better."""
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            ours[name].to(tensor),
            tensor,
            rtol=tolerance,
            atol=tolerance * float(tensor.abs().max()),
            msg=lambda text, name=name: f"{name}: {text}",
        )


# Pixels that do not fill a program, that fill several, one an image, more than the groups take at
# once; one to three blocks of channels.
SHAPES = [(3, 16, 5, 7), (5, 48, 17, 13), (13, 32, 1, 1), (11, 16, 57, 59)]
LARGE_SHAPES = [(33, 128, 31, 33), (67, 32, 45, 47), (121, 16, 47, 53)]  # one of each tile


@training
@relu
@shortcut
@pytest.mark.parametrize("shape", SHAPES + LARGE_SHAPES, ids=str)
def test_the_fused_layer_is_the_three_layers(
    fused: list[bool], shape: tuple[int, ...], training: bool, relu: bool, shortcut: bool
) -> None:
    inputs = make_inputs(shape, shortcut)
    ours, theirs = make_layers(shape[1], relu, training)
    expected = run(theirs, three_layers(theirs, relu), inputs)
    assert_close(run(ours, ours, inputs), expected, 1e-4)
    assert fused == [True]


@pytest.mark.parametrize("shape", LARGE_SHAPES, ids=str)
def test_each_large_map_has_a_tile_of_its_own(shape: tuple[int, ...]) -> None:
    tile = batch_norm.LARGE[LARGE_SHAPES.index(shape)]
    assert batch_norm.tile_of(torch.empty(shape)) == tile
    assert batch_norm.tile_of(torch.empty(1, *shape[1:])) == batch_norm.SMALL


@training
@pytest.mark.parametrize("shape", [(5, 32, 17, 13), *LARGE_SHAPES], ids=str)
def test_the_fused_layer_sums_bfloat16_in_float32(
    fused: list[bool], shape: tuple[int, ...], training: bool
) -> None:
    """Without a ReLU, which would tip over at the rounding of the output."""
    inputs = [t.bfloat16() for t in make_inputs(shape, True)]
    ours, theirs = make_layers(shape[1], False, training)
    found = run(ours, ours, inputs)
    assert found["output"].dtype == torch.bfloat16
    assert found["gradient of weight"].dtype == torch.float32
    expected = run(theirs, three_layers(theirs, False), [t.float() for t in inputs])
    assert_close(found, expected, 1e-2)
    assert fused == [True]


@pytest.mark.parametrize("shape", [SHAPES[-1], *LARGE_SHAPES], ids=str)
def test_the_fused_layer_repeats_bit_for_bit(shape: tuple[int, ...]) -> None:
    inputs = make_inputs(shape, True)
    first, second = (make_layers(shape[1])[0] for _ in range(2))
    one = run(first, first, inputs)
    again = run(second, second, inputs)
    assert all(torch.equal(one[name], again[name]) for name in one)


@pytest.mark.parametrize(
    ("channels", "memory_format"),
    [(16, torch.contiguous_format), (24, torch.channels_last)],
    ids=["other layout", "other width"],
)
def test_what_the_kernels_cannot_do_is_left_to_pytorch(
    fused: list[bool], channels: int, memory_format: torch.memory_format
) -> None:
    inputs = make_inputs((4, channels, 6, 5), True, memory_format)
    ours, theirs = make_layers(channels)
    assert_close(run(ours, ours, inputs), run(theirs, three_layers(theirs, True), inputs), 1e-4)
    assert fused == []
