"""Test how weights are initialized, read from files and copied."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fewmore.errors import DataError, MissingData
from fewmore.nn.backbones import build
from fewmore.nn.weights import load_weights, set_tensors


def same(one: nn.Module, other: nn.Module) -> bool:
    """Say whether two networks have the same weights, bit for bit."""
    a = one.state_dict()
    b = other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_convolutions_keep_the_scale_and_batch_norms_are_the_identity() -> None:
    entries = build("resnet18", 0).state_dict()
    weight = entries["layer3.1.conv2.weight"]
    assert float(weight.std()) == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
    assert bool((entries["layer3.1.bn2.weight"] == 1).all())
    assert bool((entries["layer3.1.bn2.bias"] == 0).all())


# Files in torchvision's format


def torchvision_file(path: Path, seed: int = 7) -> dict[str, Tensor]:
    """Write a file as torchvision publishes it, with a classifier and counters of batches."""
    entries = dict(build("resnet18", seed).state_dict())
    for key in list(entries):
        if "running_var" in key:
            entries[key] = torch.rand_like(entries[key]) + 0.5
            entries[key.replace("running_var", "num_batches_tracked")] = torch.tensor(5)
    whole = {**entries, "fc.weight": torch.randn(1000, 512), "fc.bias": torch.randn(1000)}
    torch.save(whole, path)
    return entries


def test_weights_are_read_from_a_file_of_torchvision(tmp_path: Path) -> None:
    entries = torchvision_file(tmp_path / "weights.pth")
    backbone = build("resnet18", 0, tmp_path / "weights.pth")
    for key, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, entries[key]), key
    whole = torch.load(tmp_path / "weights.pth")
    assert backbone.classifier is not None
    assert torch.equal(backbone.classifier[:, :-1], whole["fc.weight"])
    assert torch.equal(backbone.classifier[:, -1], whole["fc.bias"])


def test_a_file_without_a_classifier(tmp_path: Path) -> None:
    torch.save(build("resnet8").state_dict(), tmp_path / "weights.pth")
    assert build("resnet8", weights=tmp_path / "weights.pth").classifier is None


def test_a_missing_weight_file(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"none\.pth.*'imagenet'"):
        build("resnet18", weights=tmp_path / "none.pth")


def test_a_damaged_weight_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torchvision_file(path)
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(DataError, match=r"weights\.pth cannot be read .*torchvision's format"):
        load_weights(build("resnet18"), path)


@pytest.mark.parametrize(
    "content", [b"", b"no weights", b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."]
)
def test_a_file_that_is_no_weight_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        load_weights(build("resnet8"), path)


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ([1, 2], "holds a list"),
        ({1: 2}, r"missing, such as bn1\.bias; 1 not of this network, such as 1"),
        (
            {"state_dict": {"conv1.weight": torch.zeros(1)}},
            "1 not of this network, such as state_dict",
        ),
    ],
)
def test_a_file_of_something_else(tmp_path: Path, saved: object, words: str) -> None:
    torch.save(saved, tmp_path / "weights.pth")
    with pytest.raises(DataError, match=words):
        load_weights(build("resnet8"), tmp_path / "weights.pth")


def test_a_text_is_no_weight_file_and_nobody_is_told_to_read_it_unsafely(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    with pytest.raises(DataError, match="it is not a file of tensors alone") as caught:
        load_weights(build("resnet8"), path)
    assert "weights_only" not in str(caught.value)


def test_weights_of_another_network_change_nothing(tmp_path: Path) -> None:
    entries = build("resnet20").state_dict()
    entries["conv1.weight"] = torch.zeros(16, 3, 5, 5)
    torch.save(entries, tmp_path / "weights.pth")
    backbone = build("resnet8", 1)
    with pytest.raises(
        DataError, match=r"such as layer1\.1\.bn1\.bias; 1 of another shape, such as conv1\.weight"
    ):
        load_weights(backbone, tmp_path / "weights.pth")
    assert same(backbone, build("resnet8", 1))


def test_set_tensors_copies_and_refuses_other_networks() -> None:
    backbone = build("resnet8", 0)
    source = build("resnet8", 1)
    set_tensors(backbone, source.state_dict())
    assert same(backbone, source)
    with torch.no_grad():
        source.get_parameter("conv1.weight").zero_()
    assert not same(backbone, source)
    with pytest.raises(DataError, match=r"another network.*layer1\.1\.bn1\.bias"):
        set_tensors(backbone, build("resnet20").state_dict())
