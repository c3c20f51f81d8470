"""Test backbones: sizes, names and weights from a seed."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from fewmore.classifier.fitting.transform import pretrained_transform
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, DataError, MissingData, UnknownName
from fewmore.methods.network import Network
from fewmore.methods.recipe import Recipe
from fewmore.nn.backbones import BACKBONES, build, build_without_memory, check_weights
from fewmore.training.runtime import Runtime


def same(one: nn.Module, other: nn.Module) -> bool:
    """Say whether two networks have the same weights, bit for bit."""
    a = one.state_dict()
    b = other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# Sizes


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet8", 77_392),
        ("resnet20", 271_824),
        ("resnet12", 12_424_320),
        ("resnet18", 11_176_512),
        ("resnet18-3x3", 11_168_832),
        ("mobilenet_v2", 2_223_872),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert sum(tensor.numel() for tensor in build(name).parameters()) == count


@pytest.mark.parametrize(
    ("name", "side", "map_side"),
    [
        ("resnet8", 32, 8),
        ("resnet20", 32, 8),
        ("resnet12", 32, 2),
        ("resnet12", 84, 5),
        ("resnet18", 84, 3),
        ("resnet18-3x3", 32, 4),
        ("resnet18", 224, 7),
        ("mobilenet_v2", 224, 7),
        ("mobilenet_v2", 33, 2),
    ],
)
def test_features_are_the_mean_of_the_last_map(name: str, side: int, map_side: int) -> None:
    backbone = build(name).eval()
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = backbone.maps(images)
        features = backbone(images)
    assert maps.shape == (2, backbone.dim, map_side, map_side)
    assert backbone.dim == BACKBONES[name].dim
    assert torch.allclose(features, maps.flatten(2).mean(2), atol=1e-6)
    assert not torch.allclose(features[0], features[1])


@pytest.mark.parametrize(
    ("name", "size"), [("resnet8", 8), ("resnet12", 16), ("resnet18", 32), ("mobilenet_v2", 32)]
)
@torch.no_grad()
def test_early_and_late_parts_make_the_whole(name: str, size: int) -> None:
    backbone = build(name, 0).eval()
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    early = backbone.early(images)
    assert torch.equal(backbone.late(early), backbone(images))
    expected = {
        "resnet8": (32, 4),
        "resnet12": (160, 4),
        "resnet18": (128, 4),
        "mobilenet_v2": (3, 32),
    }[name]
    assert early.shape[1:] == (expected[0], expected[1], expected[1])
    assert torch.equal(backbone.from_last(backbone.before_last(images)), backbone(images))


@torch.no_grad()
def test_a_block_of_resnet12_is_that_of_its_paper() -> None:
    """Three convolutions, each with batch norm and a leaky ReLU, a shortcut and max pooling."""
    block = build("resnet12", 0).eval().get_submodule("layer1")
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = x
    for number in (1, 2, 3):
        weight = block.get_parameter(f"conv{number}.weight")
        # New batch norms divide by the root of 1 + eps.
        expected = F.conv2d(expected, weight, padding=1) / (1 + 1e-5) ** 0.5
        if number == 3:
            expected += F.conv2d(x, block.get_parameter("downsample.0.weight")) / (1 + 1e-5) ** 0.5
        expected = torch.where(expected > 0, expected, 0.1 * expected)
    torch.testing.assert_close(block(x), F.max_pool2d(expected, 2), rtol=1e-4, atol=1e-4)


def test_resnet12_refuses_images_that_are_halved_away() -> None:
    build("resnet12").check_size(16)
    with pytest.raises(ConfigError, match=r"images of 15 × 15 pixels: set transform\.size to 16"):
        build("resnet12").check_size(15)


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
    with pytest.raises(UnknownName, match=r"'resnet81'.* resnet8 or resnet18"):
        build("resnet81")
    with pytest.raises(UnknownName, match=r"'resnet50'.* timm:resnet50\)"):
        build("resnet50")


# Weights from a seed


def test_the_seed_decides_the_weights() -> None:
    assert same(build("resnet8", 3), build("resnet8", 3))
    one = build("resnet8", 3)
    other = build("resnet8", 4)
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


# Names and shapes of torchvision's files


def torchvision_names() -> set[str]:
    """Spell out the names in torchvision's file of resnet18."""

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


# Mirror images


@pytest.mark.parametrize(("name", "size"), [("resnet8", 16), ("mobilenet_v2", 64)])
@torch.no_grad()
def test_features_of_mirror_images_are_averaged(name: str, size: int) -> None:
    plain = build(name, 3).eval()
    mirrored = build(f"mirrored:{name}", 3).eval()
    assert same(plain, mirrored.body)
    assert mirrored.dim == plain.dim
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))
    expected = (plain(images) + plain(images.flip(3))) / 2
    features = mirrored(images)
    assert torch.allclose(features, expected, atol=1e-5)
    assert torch.allclose(mirrored(images.flip(3)), features, atol=1e-5)
    assert not torch.allclose(plain(images.flip(3)), plain(images), atol=1e-3)
    assert torch.allclose(mirrored.maps(images).mean((2, 3)), features, atol=1e-5)
    assert torch.allclose(mirrored.maps(images.flip(3)).flip(3), mirrored.maps(images), atol=1e-4)
    assert mirrored.last_stage() is mirrored.body.last_stage()


def test_weights_of_a_mirrored_backbone_are_those_of_the_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    classifier = {"fc.weight": torch.randn(5, 64), "fc.bias": torch.randn(5)}
    torch.save(build("resnet8", 1).state_dict() | classifier, path)
    plain, mirrored = (build(name, 0, path) for name in ("resnet8", "mirrored:resnet8"))
    assert same(plain, mirrored.body)
    assert mirrored.classifier is not None
    assert torch.equal(mirrored.classifier, plain.classifier)
    without_memory = build_without_memory("mirrored:resnet8").state_dict()
    assert without_memory.keys() == mirrored.state_dict().keys()
    assert all(tensor.is_meta for tensor in without_memory.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mirrored:resnet81", "'mirrored:resnet81': did you mean mirrored:resnet8 or"),
        ("mirrored:resnet50", r"\(if timm has it: mirrored:timm:resnet50\)"),
        ("mirrored:", "'mirrored:': "),
        ("mirrored:mirrored:resnet8", "did you mean mirrored:resnet8 or"),
        ("resnet8:mirrored", "did you mean resnet8 or"),
    ],
)
def test_a_mirrored_backbone_that_is_not_in_the_table(name: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        build(name)
    with pytest.raises(UnknownName, match=message):
        build_without_memory(name)


# timm


class FakeBody(nn.Module):
    """Look like a model of timm."""

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


def two_images() -> ImageSet:
    pixels = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    return ImageSet.from_images(pixels, [0, 1], ["a", "b"])


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a module in timm's place that has two models and records the calls."""
    recorded = SimpleNamespace(calls=[])

    def create_model(name: str, pretrained: bool, num_classes: int) -> FakeBody:
        recorded.calls.append((name, pretrained, num_classes))
        return FakeBody()

    module = ModuleType("timm")
    vars(module).update(list_models=lambda: ["tiny_net", "large_net"], create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", module)
    return recorded


def test_timm_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"'timm:resnet10t'.*pip install 'fewmore\[timm\]'"):
        build("timm:resnet10t")


def test_a_model_of_timm_comes_without_its_classifier(fake_timm: SimpleNamespace) -> None:
    backbone = build("timm:tiny_net")
    build("timm:large_net:pretrained")
    assert fake_timm.calls == [("tiny_net", False, 0), ("large_net", True, 0)]
    assert backbone.dim == 6
    assert backbone(torch.randn(2, 3, 8, 8)).shape == (2, 6)
    assert backbone.maps(torch.randn(2, 3, 8, 8)).shape == (2, 6, 6, 6)
    assert isinstance(backbone.last_stage(), nn.Linear)


def test_a_mirrored_model_of_timm(fake_timm: SimpleNamespace, tmp_path: Path) -> None:
    mirrored = build("mirrored:timm:large_net:pretrained")
    assert fake_timm.calls == [("large_net", True, 0)]
    images = torch.randn(2, 3, 8, 8)
    expected = (mirrored.body(images) + mirrored.body(images.flip(3))) / 2
    assert torch.allclose(mirrored(images), expected, atol=1e-6)
    with pytest.raises(ConfigError, match=r"images of 2 × 2 pixels"):
        mirrored.check_size(2)
    with pytest.raises(MissingData, match="of that model of timm"):
        check_weights("mirrored:timm:tiny_net", tmp_path / "none.pth")


@pytest.mark.usefixtures("fake_timm")
def test_the_seed_decides_timms_weights_too() -> None:
    torch.manual_seed(1)
    first = build("timm:tiny_net", 3)
    torch.manual_seed(2)
    assert same(first, build("timm:tiny_net", 3))
    assert not same(first, build("timm:tiny_net", 4))


@pytest.mark.usefixtures("fake_timm")
def test_names_that_timm_does_not_have() -> None:
    with pytest.raises(UnknownName, match=r"'tinynet'.* tiny_net"):
        build("timm:tinynet")
    with pytest.raises(ConfigError, match=r"'timm:tiny_net:trained'.* timm:tiny_net:pretrained"):
        build("timm:tiny_net:trained")


class FakeViT(FakeBody):
    """Look like a vision transformer of timm: blocks in a row, a norm, and an empty classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
        self.norm = nn.LayerNorm(6)
        self.fc = nn.Identity()


@pytest.mark.usefixtures("fake_timm")
def test_the_last_stage_of_timms_models_has_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = build("timm:tiny_net")
    backbone.body.fc = nn.Identity()
    assert backbone.last_stage() is backbone.body.head
    monkeypatch.setattr(sys.modules["timm"], "create_model", lambda *_, **__: FakeViT())
    transformer = build("timm:tiny_net")
    assert transformer.last_stage() is transformer.body.blocks[1]


def test_timm_whose_import_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "operator torchvision::nms does not exist"
    (tmp_path / "timm.py").write_text(f"raise RuntimeError({message!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ConfigError, match=rf"timm.*\({message}\): install the torchvision"):
        build("timm:resnet10t")


@pytest.mark.usefixtures("fake_timm")
def test_timm_that_cannot_make_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Invalid pretrained tag")

    monkeypatch.setattr(sys.modules["timm"], "create_model", fail)
    with pytest.raises(ConfigError, match=r"'timm:tiny_net.in1k' \(Invalid pretrained tag\)"):
        build("timm:tiny_net.in1k:pretrained")


@pytest.mark.usefixtures("fake_timm")
def test_images_have_the_size_and_normalization_of_timms_weights() -> None:
    backbone = build("timm:tiny_net")
    assert pretrained_transform("timm:tiny_net", backbone).size == 224
    half = (0.5, 0.5, 0.5)
    config = {"input_size": (3, 518, 518), "crop_pct": 0.9, "mean": half, "std": half}
    backbone.body.pretrained_cfg = config
    transform = pretrained_transform("timm:tiny_net", backbone)
    assert (transform.size, transform.resize, transform.mean) == (518, 576, half)
    mirrored = build("mirrored:timm:tiny_net")
    mirrored.body.body.pretrained_cfg = config
    assert pretrained_transform("mirrored:timm:tiny_net", mirrored) == transform


# Weights of timm's models from a file


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("classifier", ["fc", "head", "classifier", "head.fc"])
@pytest.mark.usefixtures("fake_timm")
def test_timms_weights_are_read_from_a_file(tmp_path: Path, suffix: str, classifier: str) -> None:
    entries = {name: torch.randn_like(t) for name, t in FakeBody().state_dict().items()}
    published = {**entries, f"{classifier}.weight": torch.randn(9, 6)}
    if classifier == "head":  # the classifier of this stand-in would be its own layer
        published = entries
    path = tmp_path / f"weights.{suffix}"
    if suffix == "pth":
        torch.save(published, path)
    else:
        save_file(published, path)
    body = build("timm:tiny_net", 0, path).body.state_dict()
    assert body.keys() == entries.keys()
    assert all(torch.equal(body[name], entries[name]) for name in entries)


@pytest.mark.usefixtures("fake_timm")
def test_weights_that_timms_model_cannot_take(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    with pytest.raises(MissingData, match=r"there is no weight file .* of that model of timm") as e:
        build("timm:tiny_net", 0, path)
    assert "backbone=timm:tiny_net:pretrained and weights=none" in str(e.value)
    assert "torchvision" not in str(e.value)
    with pytest.raises(MissingData, match="torchvision's format, or 'imagenet'"):
        build("resnet18", 0, path)
    torch.save(build("resnet8").state_dict(), path)
    with pytest.raises(DataError, match="is not a weight file of this backbone"):
        build("timm:tiny_net", 0, path)
    with pytest.raises(ConfigError, match=r"write timm:tiny_net to take those of the file"):
        build("timm:tiny_net:pretrained", 0, path)


@pytest.mark.usefixtures("fake_timm")
def test_imagenet_weights_of_timms_models_are_asked_for_by_name() -> None:
    recipe = Recipe("own", "timm:tiny_net", BENCHMARKS["glyphs"].transform, "imagenet")
    with pytest.raises(ConfigError, match=r"backbone=timm:tiny_net:pretrained and weights=none"):
        Network(recipe, Runtime()).fit(two_images(), "cosine", 0)


@pytest.mark.usefixtures("fake_timm")
def test_images_that_timms_model_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = build("timm:tiny_net")
    backbone.check_size(8)
    assert backbone.training
    with pytest.raises(ConfigError, match=r"images of 2 × 2 pixels \(.*\): set transform\.size"):
        backbone.check_size(2)
    monkeypatch.setattr(FakeBody, "head_hidden_size", 7, raising=False)
    wider = build("timm:tiny_net")
    assert wider.dim == 7
    with pytest.raises(ConfigError, match=r"shape \(6,\) instead of \(7,\)"):
        wider.check_size(8)
    recipe = Recipe("own", "timm:tiny_net", replace(BENCHMARKS["glyphs"].transform, size=2))
    with pytest.raises(ConfigError, match="2 × 2 pixels"):
        Network(recipe, Runtime()).fit(two_images(), "cosine", 0)


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
    assert all(info.remark for info in BACKBONES.values())
