"""Test BatchNormAct2d against PyTorch's own layers, bit for bit, and ghost batch norm."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.nn.layers import BatchNormAct2d, set_ghost_batch_size

training = pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
relu = pytest.mark.parametrize("relu", [True, False], ids=["relu", "no relu"])
shortcut = pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "no shortcut"])


def randomize(layer: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """Give a layer weights and statistics that are not the initial ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean):
            assert tensor is not None
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        assert layer.running_var is not None
        layer.running_var.copy_(torch.rand(layer.running_var.shape, generator=generator) + 0.5)
    return layer


def make_inputs(shape: tuple[int, ...], shortcut: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Make maps whose channels differ in mean and std, perhaps a shortcut, and a gradient."""
    generator = torch.Generator().manual_seed(1)
    channels = torch.arange(shape[1])[None, :, None, None] / shape[1]
    x = torch.randn(shape, generator=generator) * (0.5 + channels) + channels
    other, grad = torch.randn(2, *shape, generator=generator)
    return x, other if shortcut else None, grad


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
    x: Tensor,
    shortcut: Tensor | None,
    grad: Tensor,
) -> dict[str, Tensor | None]:
    """Return the output, all gradients and the statistics of a forward and a backward pass."""
    x = x.clone().requires_grad_()
    shortcut = None if shortcut is None else shortcut.clone().requires_grad_()
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
    return found


@training
@relu
@shortcut
def test_it_is_batch_norm_shortcut_and_relu(training: bool, relu: bool, shortcut: bool) -> None:
    inputs = make_inputs((5, 6, 4, 3), shortcut)
    ours = randomize(BatchNormAct2d(6, relu)).train(training)
    plain = randomize(nn.BatchNorm2d(6)).train(training)
    found = run(ours, ours, *inputs)
    expected = run(plain, three_layers(plain, relu), *inputs)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensor is not None, name
        assert found[name] is not None, name
        assert torch.equal(found[name], tensor), name


def test_statistics_change_in_training_alone() -> None:
    x, _, _ = make_inputs((5, 6, 4, 3), False)
    layer = BatchNormAct2d(6)
    assert layer.running_mean is not None
    layer.eval()(x)
    assert torch.equal(layer.running_mean, torch.zeros(6))
    layer.train()(x)
    torch.testing.assert_close(layer.running_mean, 0.1 * x.mean((0, 2, 3)))


# State dicts


def test_the_state_is_a_batch_norms_without_the_counter() -> None:
    ours = BatchNormAct2d(4).state_dict()
    theirs = nn.BatchNorm2d(4).state_dict()
    assert list(ours) == ["weight", "bias", "running_mean", "running_var"]
    assert ours.keys() == theirs.keys() - {"num_batches_tracked"}


@pytest.mark.parametrize("plain_dict", [True, False], ids=["plain dict", "with metadata"])
@pytest.mark.parametrize("source", [BatchNormAct2d, nn.BatchNorm2d])
def test_states_are_loaded_with_and_without_the_counter(
    source: type[nn.BatchNorm2d], plain_dict: bool
) -> None:
    """Load inside a network, as weight files do; a plain dict has lost PyTorch's version number."""
    state = nn.Sequential(nn.Conv2d(3, 4, 1), randomize(source(4))).state_dict()
    network = nn.Sequential(nn.Conv2d(3, 4, 1), BatchNormAct2d(4))
    before = list(state)
    network.load_state_dict(dict(state) if plain_dict else state)
    assert list(state) == before, "the caller's dict was changed"
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_a_state_with_a_missing_or_unknown_tensor_is_refused() -> None:
    state = BatchNormAct2d(4).state_dict()
    with pytest.raises(RuntimeError, match="running_var"):
        BatchNormAct2d(4).load_state_dict({k: t for k, t in state.items() if k != "running_var"})
    with pytest.raises(RuntimeError, match="extra"):
        BatchNormAct2d(4).load_state_dict({**state, "extra": torch.zeros(4)})


# Ghost batch norm


@shortcut
def test_ghost_statistics_are_those_of_parts_of_the_batch(shortcut: bool) -> None:
    x, other, _ = make_inputs((6, 6, 4, 3), shortcut)
    ghost = randomize(BatchNormAct2d(6))
    plain = randomize(BatchNormAct2d(6))
    set_ghost_batch_size(nn.Sequential(ghost), 4)
    expected = [
        plain(x[part], None if other is None else other[part])
        for part in (slice(0, 4), slice(4, 6))
    ]
    assert torch.equal(ghost(x, other), torch.cat(expected))
    assert ghost.running_mean is not None
    assert plain.running_mean is not None
    assert torch.equal(ghost.running_mean, plain.running_mean)
    ghost.eval()
    plain.eval()
    assert torch.equal(ghost(x, other), plain(x, other)), "evaluation has no parts"


@pytest.mark.parametrize("images", [0, 6, 100], ids=["off", "the batch", "more than the batch"])
def test_a_ghost_batch_that_is_no_part_is_the_whole_batch(images: int) -> None:
    x, _, _ = make_inputs((6, 6, 4, 3), False)
    layer = BatchNormAct2d(6)
    set_ghost_batch_size(layer, 2)
    parts = layer(x)
    set_ghost_batch_size(layer, images)
    assert torch.equal(layer(x), BatchNormAct2d(6)(x))
    assert not torch.equal(layer(x), parts)


def test_the_ghost_batch_size_is_set_in_every_batch_norm_of_a_network() -> None:
    network = nn.Sequential(BatchNormAct2d(2), nn.Sequential(nn.ReLU(), BatchNormAct2d(2)))
    set_ghost_batch_size(network, 8)
    assert [m.ghost for m in network.modules() if isinstance(m, BatchNormAct2d)] == [8, 8]
