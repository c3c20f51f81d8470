"""Backbones: sizes, names, and weights from a seed or a file."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fewmore.errors import ConfigError, DataError, MissingData, UnknownName
from fewmore.nn import backbones
from fewmore.nn.backbones import (
    BACKBONES,
    _Pointwise,
    build,
    for_inference,
    load_weights,
    parameters,
    set_tensors,
)


def same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# Sizes


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet8", 77_392),
        ("resnet20", 271_824),
        ("resnet18", 11_176_512),
        ("mobilenet_v2", 2_223_872),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameters(build(name)) == count


@pytest.mark.parametrize(
    ("name", "side", "map_side"),
    [
        ("resnet8", 32, 8),
        ("resnet20", 32, 8),
        ("resnet18", 84, 3),
        ("resnet18", 224, 7),
        ("mobilenet_v2", 224, 7),
        ("mobilenet_v2", 33, 2),
    ],
)
def test_features_are_the_mean_of_the_last_map(name: str, side: int, map_side: int) -> None:
    backbone = build(name).eval()
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps, features = backbone.maps(images), backbone(images)
    assert maps.shape == (2, backbone.dim, map_side, map_side)
    assert backbone.dim == BACKBONES[name].dim
    assert torch.allclose(features, maps.flatten(2).mean(2), atol=1e-6)
    assert not torch.allclose(features[0], features[1])


def test_the_last_stage_is_the_last_group_of_blocks() -> None:
    backbone = build("resnet18")
    assert backbone.last_stage() is backbone.get_submodule("layer4")
    mobile = build("mobilenet_v2")
    assert mobile.last_stage() is mobile.get_submodule("features.18")


def test_batch_norms_count_no_batches() -> None:
    backbone = build("resnet8")
    before = backbone.state_dict()["bn1.running_mean"].clone()
    backbone(torch.randn(4, 3, 16, 16))
    assert not any("num_batches" in key for key in backbone.state_dict())
    assert not torch.equal(before, backbone.state_dict()["bn1.running_mean"])


def test_a_name_that_is_not_in_the_table() -> None:
    with pytest.raises(
        UnknownName, match="no backbone is named 'resnet81': did you mean resnet8 or resnet18"
    ):
        build("resnet81")


# Weights from a seed


def test_the_seed_decides_the_weights() -> None:
    assert same(build("resnet8", 3), build("resnet8", 3))
    one, other = build("resnet8", 3), build("resnet8", 4)
    for key, tensor in one.state_dict().items():
        if "conv" in key or "downsample.0" in key:
            assert not torch.equal(tensor, other.state_dict()[key]), key


def test_nothing_else_decides_the_weights_or_is_changed() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = build("resnet8", 3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(first, build("resnet8", 3))


def test_convolutions_keep_the_scale_and_batch_norms_are_the_identity() -> None:
    entries = build("resnet18", 0).state_dict()
    weight = entries["layer3.1.conv2.weight"]
    assert float(weight.std()) == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
    assert bool((entries["layer3.1.bn2.weight"] == 1).all())
    assert bool((entries["layer3.1.bn2.bias"] == 0).all())


# Weights from a file


def torchvision_names() -> set[str]:
    """The names in torchvision's file of resnet18, spelt out."""

    def norm(name: str) -> list[str]:
        return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]

    names = ["conv1.weight", *norm("bn1")]
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            for part in (1, 2):
                names += [
                    f"layer{layer}.{block}.conv{part}.weight",
                    *norm(f"layer{layer}.{block}.bn{part}"),
                ]
        if layer > 1:
            names += [f"layer{layer}.0.downsample.0.weight", *norm(f"layer{layer}.0.downsample.1")]
    return set(names)


def torchvision_file(path: Path, seed: int = 7) -> dict[str, Tensor]:
    """A file as torchvision publishes it: with the classifier's rows, and a counter beside each batch norm."""
    entries = dict(build("resnet18", seed).state_dict())
    for key in list(entries):
        if "running_var" in key:
            entries[key] = torch.rand_like(entries[key]) + 0.5
            entries[key.replace("running_var", "num_batches_tracked")] = torch.tensor(5)
    whole = {**entries, "fc.weight": torch.randn(1000, 512), "fc.bias": torch.randn(1000)}
    torch.save(whole, path)
    return entries


def test_resnet18_has_torchvisions_names_and_shapes() -> None:
    entries = build("resnet18").state_dict()
    assert set(entries) == torchvision_names()
    assert entries["conv1.weight"].shape == (64, 3, 7, 7)
    assert entries["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)
    assert entries["layer4.1.conv2.weight"].shape == (512, 512, 3, 3)


def test_mobilenet_v2_has_torchvisions_names_and_shapes() -> None:
    entries = build("mobilenet_v2").state_dict()
    convolutions = {"features.0.0", "features.1.conv.0.0", "features.1.conv.1", "features.18.0"}
    norms = {"features.0.1", "features.1.conv.0.1", "features.1.conv.2", "features.18.1"}
    for block in range(2, 18):
        convolutions |= {f"features.{block}.conv.{layer}" for layer in ("0.0", "1.0", "2")}
        norms |= {f"features.{block}.conv.{layer}" for layer in ("0.1", "1.1", "3")}
    parts = ("weight", "bias", "running_mean", "running_var")
    assert set(entries) == {f"{name}.weight" for name in convolutions} | {
        f"{name}.{part}" for name in norms for part in parts
    }
    assert entries["features.2.conv.1.0.weight"].shape == (96, 1, 3, 3)
    assert entries["features.17.conv.2.weight"].shape == (320, 960, 1, 1)
    assert entries["features.18.0.weight"].shape == (1280, 320, 1, 1)


def test_mobilenet_v2_learns() -> None:
    backbone = build("mobilenet_v2").train()
    backbone(torch.randn(2, 3, 64, 64)).square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in backbone.parameters())


def test_weights_are_read_from_a_file_of_torchvision(tmp_path: Path) -> None:
    entries = torchvision_file(tmp_path / "weights.pth")
    backbone = build("resnet18", 0, tmp_path / "weights.pth")
    for key, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, entries[key]), key


def test_a_missing_weight_file(tmp_path: Path) -> None:
    with pytest.raises(
        MissingData,
        match=r"there is no weight file .*none\.pth: give the path .* or 'imagenet' to download one",
    ):
        build("resnet18", weights=tmp_path / "none.pth")


def test_a_damaged_weight_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torchvision_file(path)
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(
        DataError,
        match=r"weights\.pth cannot be read as a weight file \(.*\): give a file in torchvision's format",
    ):
        load_weights(build("resnet18"), path)


@pytest.mark.parametrize(
    "content", [b"", b"no weights", b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."]
)
def test_a_file_that_is_no_weight_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as a weight file"):
        load_weights(build("resnet8"), path)


@pytest.mark.parametrize(
    ("saved", "sentence"),
    [
        ([1, 2], "holds a list, not a table of weights"),
        (
            {1: 2},
            "not a weight file of this backbone: .* missing, such as bn1.bias; 1 not of this network, such as 1",
        ),
        (
            {"state_dict": {"conv1.weight": torch.zeros(1)}},
            "1 not of this network, such as state_dict",
        ),
    ],
)
def test_a_file_of_something_else(tmp_path: Path, saved: object, sentence: str) -> None:
    torch.save(saved, tmp_path / "weights.pth")
    with pytest.raises(DataError, match=sentence):
        load_weights(build("resnet8"), tmp_path / "weights.pth")


def test_weights_of_another_network_change_nothing(tmp_path: Path) -> None:
    entries = build("resnet20").state_dict()
    entries["conv1.weight"] = torch.zeros(16, 3, 5, 5)
    torch.save(entries, tmp_path / "weights.pth")
    backbone = build("resnet8", 1)
    with pytest.raises(
        DataError,
        match=r"not of this network, such as layer1\.1\.bn1\.bias; 1 of another shape, such as conv1\.weight",
    ):
        load_weights(backbone, tmp_path / "weights.pth")
    assert same(backbone, build("resnet8", 1))


def test_set_tensors_copies_and_refuses_other_networks() -> None:
    backbone, source = build("resnet8", 0), build("resnet8", 1)
    set_tensors(backbone, source.state_dict())
    assert same(backbone, source)
    with torch.no_grad():
        source.get_parameter("conv1.weight").zero_()
    assert not same(backbone, source)
    with pytest.raises(DataError, match=r"another network's: layer1\.1\.bn1\.bias"):
        set_tensors(backbone, build("resnet20").state_dict())


# For inference


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "mobilenet_v2"])
def test_batch_norms_are_folded_away(name: str) -> None:
    backbone = build(name, 1).double()  # deep networks of random numbers round too much for less
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in backbone.modules():
            if isinstance(part, nn.BatchNorm2d):
                assert part.running_mean is not None
                assert part.running_var is not None
                for tensor, low in (
                    (part.weight, 0.5),
                    (part.bias, -0.5),
                    (part.running_mean, -0.5),
                    (part.running_var, 0.5),
                ):
                    tensor.uniform_(low, low + 1, generator=generator)
        before = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
        folded = for_inference(backbone)
        images = torch.randn(3, 3, 64, 64, generator=generator, dtype=torch.float64)
        backbone.eval()
        assert torch.allclose(folded(images), backbone(images), rtol=1e-9)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    assert not any(p.requires_grad for p in folded.parameters())
    assert all(torch.equal(before[key], tensor) for key, tensor in backbone.state_dict().items())


@pytest.mark.parametrize("images", [1, 3, 4, 9, 15, 16])
@pytest.mark.parametrize("stride", [1, 2])
def test_pointwise_convolutions_of_few_images_are_the_same(images: int, stride: int) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(8, 24, 1, stride).requires_grad_(False)
    x = torch.randn(images, 8, 7, 7).to(memory_format=torch.channels_last)
    assert torch.allclose(_Pointwise(convolution)(x), convolution(x), atol=1e-6)
    assert torch.allclose(_Pointwise(convolution.double())(x.double()), convolution(x.double()))


# timm


class FakeBody(nn.Module):
    """Looks like a model of timm."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.head = nn.Linear(6, 6)

    def forward_features(self, x: Tensor) -> Tensor:
        out: Tensor = self.stem(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.forward_features(x).mean((2, 3)))
        return out


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    asked = SimpleNamespace(calls=[])

    def create_model(name: str, pretrained: bool, num_classes: int) -> FakeBody:
        asked.calls.append((name, pretrained, num_classes))
        return FakeBody()

    module = ModuleType("timm")
    vars(module).update(list_models=lambda: ["tiny_net", "large_net"], create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", module)
    return asked


def test_timm_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ConfigError,
        match=r"backbone 'timm:resnet10t' needs the timm package: pip install 'fewmore\[timm\]'",
    ):
        build("timm:resnet10t")


def test_a_model_of_timm_comes_without_its_classifier(fake_timm: SimpleNamespace) -> None:
    backbone = build("timm:tiny_net")
    build("timm:large_net:pretrained")
    assert fake_timm.calls == [("tiny_net", False, 0), ("large_net", True, 0)]
    assert backbone.dim == 6
    assert backbone(torch.randn(2, 3, 8, 8)).shape == (2, 6)
    assert backbone.maps(torch.randn(2, 3, 8, 8)).shape == (2, 6, 6, 6)
    assert isinstance(backbone.last_stage(), nn.Linear)


@pytest.mark.usefixtures("fake_timm")
def test_the_seed_decides_timms_weights_too() -> None:
    torch.manual_seed(1)
    first = build("timm:tiny_net", 3)
    torch.manual_seed(2)
    assert same(first, build("timm:tiny_net", 3))
    assert not same(first, build("timm:tiny_net", 4))


@pytest.mark.usefixtures("fake_timm")
def test_names_that_timm_does_not_have() -> None:
    with pytest.raises(
        UnknownName, match="no timm model is named 'tinynet': did you mean tiny_net"
    ):
        build("timm:tinynet")
    with pytest.raises(
        ConfigError,
        match="backbone 'timm:tiny_net:trained': write timm:tiny_net, or timm:tiny_net:pretrained",
    ):
        build("timm:tiny_net:trained")


def test_a_real_model_of_timm() -> None:
    try:
        import timm  # noqa: F401
    except Exception as error:  # a build that does not fit torch's raises more than ImportError
        pytest.skip(f"timm cannot be imported: {error}")
    backbone = build("timm:resnet10t", 1).eval()
    with torch.no_grad():
        features = backbone(torch.randn(2, 3, 64, 64))
    assert features.shape == (2, backbone.dim)
    assert same(backbone, build("timm:resnet10t", 1))


def test_the_table_says_what_each_backbone_is_for() -> None:
    assert all(info.remark for info in backbones.BACKBONES.values())
