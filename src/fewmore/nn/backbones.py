"""Define backbones, which turn a batch of images into features: (n, 3, s, s) to (n, d).

Parameters carry torchvision's names, so its published weight files fit as they are. Any model of
timm is `timm:NAME`, and `mirrored:NAME` averages the features of an image and of its mirror image.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.errors import ConfigError, UnknownName, first_line
from fewmore.nn.layers import BatchNormAct2d
from fewmore.nn.weights import check_weight_file, initialize, load_weights

TIMM_PREFIX = "timm:"
MIRRORED_PREFIX = "mirrored:"
EARLY_STAGES = 2  # of a ResNet, which `early` computes
LEAK = 0.1  # of ResNet12's ReLUs
ROWS = ("blocks", "stages", "layers")  # names of timm's children that hold stages or blocks
_GLOBAL_GENERATOR = threading.Lock()  # runs in threads take turns with it


class BasicBlock(nn.Module):
    """Apply two 3×3 convolutions and add a shortcut."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNormAct2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = BatchNormAct2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, channels, 1, stride, bias=False),
                BatchNormAct2d(channels, relu=False),
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.bn1(self.conv1(x))
        out: Tensor = self.bn2(self.conv2(x), shortcut)
        return out


class Backbone(nn.Module):
    """Map images to features, `dim` of them an image."""

    dim: int
    classifier: Tensor | None = None  # (k, d + 1): that came with the weights, the bias last

    def maps(self, x: Tensor) -> Tensor:
        """Compute the last feature map, (n, d, h, w)."""
        raise NotImplementedError

    def last_stage(self) -> nn.Module:
        """Return the part that is trained when only "the last layer" is."""
        raise NotImplementedError

    @property
    def config(self) -> Mapping[str, Any]:
        """Return what is known of the weights: size of the images, mean, std, …"""
        return {}

    def check_size(self, size: int) -> None:
        """Refuse a side of images that the backbone cannot take."""

    def early(self, x: Tensor) -> Tensor:
        """Compute what `late` goes on from: the maps of the first stages, or the images."""
        return x

    def late(self, x: Tensor) -> Tensor:
        """Compute the features of what `early` returns."""
        features: Tensor = self(x)
        return features

    def before_last(self, x: Tensor) -> Tensor:
        """Compute what `from_last` goes on from: the maps before the last stage, or the images."""
        return x

    def from_last(self, x: Tensor) -> Tensor:
        """Compute the features of what `before_last` returns."""
        features: Tensor = self(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        return self.maps(x).mean((2, 3))


class StagedBackbone(Backbone):
    """Compute maps by a stem and stages: `layer1`, `layer2`, …"""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.dim = widths[-1]
        self.depth = len(widths)

    def stem(self, x: Tensor) -> Tensor:
        """Compute what the first stage goes on from."""
        return x

    def maps(self, x: Tensor) -> Tensor:
        return self._stages(self.early(x), EARLY_STAGES + 1, self.depth)

    def early(self, x: Tensor) -> Tensor:
        """Compute the maps of the first two stages."""
        return self._stages(self.stem(x), 1, EARLY_STAGES)

    def late(self, x: Tensor) -> Tensor:
        return self._stages(x, EARLY_STAGES + 1, self.depth).mean((2, 3))

    def before_last(self, x: Tensor) -> Tensor:
        return self._stages(self.early(x), EARLY_STAGES + 1, self.depth - 1)

    def from_last(self, x: Tensor) -> Tensor:
        return self._stages(x, self.depth, self.depth).mean((2, 3))

    def _stages(self, x: Tensor, first: int, last: int) -> Tensor:
        for number in range(first, last + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return x

    def last_stage(self) -> nn.Module:
        return self.get_submodule(f"layer{self.depth}")


class ResNet(StagedBackbone):
    """Stack residual stages of basic blocks; each but the first halves the resolution."""

    def __init__(self, widths: tuple[int, ...], blocks: tuple[int, ...], large_stem: bool) -> None:
        super().__init__(widths)
        if large_stem:
            self.conv1 = nn.Conv2d(3, widths[0], 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = BatchNormAct2d(widths[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large_stem else nn.Identity()
        before = widths[0]
        for number, (width, count) in enumerate(zip(widths, blocks, strict=True), 1):
            strides = [1 if number == 1 else 2] + [1] * (count - 1)
            layers = [
                BasicBlock(before if i == 0 else width, width, stride)
                for i, stride in enumerate(strides)
            ]
            self.add_module(f"layer{number}", nn.Sequential(*layers))
            before = width

    def stem(self, x: Tensor) -> Tensor:
        out: Tensor = self.maxpool(self.bn1(self.conv1(x)))
        return out


class PooledBlock(nn.Module):
    """Apply three 3×3 convolutions, add a shortcut, and halve the resolution; ReLUs are leaky."""

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, padding=1, bias=False)
        self.bn1 = BatchNormAct2d(channels, relu=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = BatchNormAct2d(channels, relu=False)
        self.conv3 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn3 = BatchNormAct2d(channels, relu=False)
        self.downsample = nn.Sequential(
            nn.Conv2d(before, channels, 1, bias=False), BatchNormAct2d(channels, relu=False)
        )
        self.maxpool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x)
        x = F.leaky_relu(self.bn1(self.conv1(x)), LEAK)
        x = F.leaky_relu(self.bn2(self.conv2(x)), LEAK)
        x = F.leaky_relu(self.bn3(self.conv3(x), shortcut), LEAK)
        out: Tensor = self.maxpool(x)
        return out


class ResNet12(StagedBackbone):
    """Stack four pooled blocks, as Oreshkin et al., TADAM (NeurIPS 2018); without DropBlock."""

    def __init__(self) -> None:
        widths = (64, 160, 320, 640)
        super().__init__(widths)
        for number, (before, width) in enumerate(zip((3, *widths), widths, strict=False), 1):
            self.add_module(f"layer{number}", PooledBlock(before, width))

    def check_size(self, size: int) -> None:
        if size < 2**self.depth:
            raise ConfigError(
                f"resnet12 halves its maps {self.depth} times and cannot take images of {size} × "
                f"{size} pixels: set transform.size to {2**self.depth} or more"
            )


def _small_resnet(blocks: int) -> ResNet:
    """Build the ResNet of three stages for 32-pixel images."""
    return ResNet((16, 32, 64), (blocks,) * 3, large_stem=False)


def _resnet18(large_stem: bool) -> ResNet:
    return ResNet((64, 128, 256, 512), (2, 2, 2, 2), large_stem)


class ConvBNReLU6(nn.Sequential):
    """Apply a convolution that keeps the size at stride 1, batch norm, and ReLU6."""

    def __init__(
        self, before: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        convolution = nn.Conv2d(
            before, channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False
        )
        super().__init__(convolution, BatchNormAct2d(channels, relu=False))

    def forward(self, x: Tensor) -> Tensor:
        convolution, norm = self
        return F.relu6(norm(convolution(x)), inplace=not torch.is_grad_enabled())


class InvertedResidual(nn.Module):
    """Expand by a 1×1 convolution, filter depthwise, project without a ReLU, add a shortcut."""

    def __init__(self, before: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = before * expansion
        layers: list[nn.Module] = [ConvBNReLU6(before, hidden, 1)] if expansion > 1 else []
        layers += [
            ConvBNReLU6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, channels, 1, bias=False),
            BatchNormAct2d(channels, relu=False),
        ]
        self.conv = nn.Sequential(*layers)
        self.shortcut = stride == 1 and before == channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.shortcut else out


class MobileNetV2(Backbone):
    """Stack inverted residuals: table 2 of Sandler et al., MobileNetV2 (CVPR 2018)."""

    dim = 1280

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvBNReLU6(3, 32, 3, stride=2)]
        before = 32
        for expansion, channels, blocks, first_stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for block in range(blocks):
                layers.append(
                    InvertedResidual(before, channels, 1 if block else first_stride, expansion)
                )
                before = channels
        self.features = nn.Sequential(*layers, ConvBNReLU6(before, self.dim, 1))

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(x)
        return out

    def last_stage(self) -> nn.Module:
        return self.features[-1]


class TimmBackbone(Backbone):
    """Wrap a model of timm, without its classifier."""

    def __init__(self, name: str, pretrained: bool) -> None:
        super().__init__()
        timm = _find_timm(name)
        try:
            self.body = timm.create_model(name, pretrained=pretrained, num_classes=0)
        except Exception as error:  # an unknown tag, weights that cannot be downloaded, …
            raise ConfigError(
                f"timm cannot make the backbone 'timm:{name}' ({first_line(error)}): take another "
                "model or tag; without network, leave ':pretrained' away or give weights=FILE"
            ) from error
        # Some models end in a wider layer than their last map.
        self.dim = int(getattr(self.body, "head_hidden_size", None) or self.body.num_features)

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.body.forward_features(x)
        return out

    def last_stage(self) -> nn.Module:
        """Return the last child with a weight matrix; of a row of stages or blocks, the last one.

        What comes after it in timm's models are norms, pooling, and an Identity as classifier.
        """
        children: list[tuple[str, nn.Module]] = list(self.body.named_children())
        for name, child in reversed(children):
            if any(parameter.ndim > 1 for parameter in child.parameters()):
                return list(child.children())[-1] if name in ROWS else child
        body: nn.Module = self.body
        return body

    @property
    def config(self) -> Mapping[str, Any]:
        return getattr(self.body, "pretrained_cfg", None) or {}

    def load(self, path: Path) -> None:
        """Read the weights of this model of timm from a file, without the classifier's."""
        names = self.config.get("classifier") or ("fc", "head", "classifier")
        names = (names,) if isinstance(names, str) else tuple(names)
        expected = "the state dict of this model of timm"
        self.classifier = load_weights(self.body, path, names, expected)

    @torch.no_grad()
    def check_size(self, size: int) -> None:
        """Refuse a side of images that the model cannot take, as vision transformers do."""
        mode = self.training
        try:
            shape = tuple(self.eval()(torch.zeros(1, 3, size, size)).shape)
        except Exception as error:
            raise ConfigError(
                f"this model of timm cannot take images of {size} × {size} pixels "
                f"({first_line(error)}): set transform.size and transform.resize, or another "
                "image_size"
            ) from error
        finally:
            self.train(mode)
        if shape != (1, self.dim):
            raise ConfigError(
                f"this model of timm gives features of shape {shape[1:]} instead of "
                f"({self.dim},): take another one"
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


class MirroredBackbone(Backbone):
    """Average the features of images and of their mirror images, in one batch of twice the size."""

    def __init__(self, body: Backbone) -> None:
        super().__init__()
        self.body = body
        self.dim = body.dim
        self.classifier = body.classifier

    def maps(self, x: Tensor) -> Tensor:
        plain, mirrored = self.body.maps(_with_mirror_images(x)).chunk(2)
        return (plain + mirrored.flip(3)) / 2

    def last_stage(self) -> nn.Module:
        return self.body.last_stage()

    @property
    def config(self) -> Mapping[str, Any]:
        return self.body.config

    def check_size(self, size: int) -> None:
        self.body.check_size(size)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(_with_mirror_images(x))
        return features.reshape(2, -1, self.dim).mean(0)


def _with_mirror_images(x: Tensor) -> Tensor:
    """Return images (n, 3, h, w) and then each of them mirrored, (2n, 3, h, w)."""
    return torch.cat([x, x.flip(3)])


def _find_timm(name: str) -> Any:
    """Import timm, once it has a model of this name."""
    timm = _import_timm(name)
    known = timm.list_models()
    if name.partition(".")[0] not in known:  # what follows a dot names weights
        raise UnknownName("timm model", name, known)
    return timm


def _import_timm(name: str) -> Any:
    """Import timm, or say what to install for the model of this name."""
    try:
        return import_module("timm")
    except ImportError as error:
        raise ConfigError(
            f"backbone 'timm:{name}' needs the timm package: pip install 'fewmore[timm]' ({error})"
        ) from error
    except Exception as error:  # a torchvision that does not fit torch raises RuntimeError
        raise ConfigError(
            f"backbone 'timm:{name}' needs the timm package, which is there but cannot be imported "
            f"({first_line(error)}): install the torchvision that belongs to torch "
            f"{torch.__version__}, from where that torch came"
        ) from error


@dataclass(frozen=True)
class BackboneInfo:
    """Describe a backbone in the registry."""

    build: Callable[[], Backbone]
    dim: int
    side: int  # of the images that it is for, in pixels
    remark: str


BACKBONES: dict[str, BackboneInfo] = {
    "resnet8": BackboneInfo(
        lambda: _small_resnet(1), 64, 32, "32-pixel images; a third of resnet20's work, for laptops"
    ),
    "resnet20": BackboneInfo(
        lambda: _small_resnet(3), 64, 32, "32-pixel images; the paper's CIFAR100 network"
    ),
    "resnet12": BackboneInfo(
        ResNet12, 640, 32, "32 to 84 pixels; NC-FSCIL's network on CIFAR100 and miniImageNet"
    ),
    "resnet18": BackboneInfo(
        partial(_resnet18, large_stem=True),
        512,
        84,
        "84 pixels and more; the paper's miniImageNet and CUB200 network",
    ),
    "resnet18-3x3": BackboneInfo(
        partial(_resnet18, large_stem=False),
        512,
        32,
        "32-pixel images: a stem of 3×3 without pooling; WaRP's network on CIFAR100",
    ),
    "mobilenet_v2": BackboneInfo(
        MobileNetV2, MobileNetV2.dim, 224, "224 pixels; with ImageNet weights, photos on a laptop"
    ),
}


def build(name: str, seed: int = 0, weights: Path | None = None) -> Backbone:
    """Build a backbone by name, with random weights or those of a file in torchvision's format.

    `timm:NAME` is timm's model of that name, with timm's weights for `timm:NAME:pretrained`; a
    file then holds the weights of that model. `mirrored:` before any name averages the features of
    an image and of its mirror image, at twice the work, by the weights of that backbone.
    """
    check_name(name)
    plain = plain_name(name)
    backbone = _build_plain(plain, seed, weights)
    return backbone if name == plain else MirroredBackbone(backbone)


def check_name(name: str) -> None:
    """Refuse the name of a backbone that there is not; nothing is built."""
    plain = plain_name(name)
    if is_of_timm(name):
        _find_timm(plain.split(":")[1])
    elif plain not in BACKBONES:
        prefix = name.removesuffix(plain)
        names = [f"{prefix}{known}" for known in (*BACKBONES, f"{TIMM_PREFIX}NAME")]
        more = f"if timm has it: {prefix}{TIMM_PREFIX}{plain}"
        raise UnknownName("backbone", name, names, more)


def _build_plain(name: str, seed: int, weights: Path | None) -> Backbone:
    # Constructors draw from the global generator, which is put back as it was.
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if name.startswith(TIMM_PREFIX):
            return _build_timm(name, weights)
        backbone = BACKBONES[name].build()
    initialize(backbone, torch.Generator().manual_seed(seed))
    if weights is not None:
        backbone.classifier = load_weights(backbone, weights)
    return backbone


def build_without_memory(name: str) -> Backbone:
    """Build a backbone on the meta device; one of timm, with random weights in memory."""
    if plain_name(name) not in BACKBONES:
        return build(name)
    with torch.device("meta"):
        backbone = BACKBONES[plain_name(name)].build()
        return backbone if name in BACKBONES else MirroredBackbone(backbone)


def plain_name(name: str) -> str:
    """Return the name of the backbone whose weights a backbone has."""
    return name.removeprefix(MIRRORED_PREFIX)


def is_of_timm(name: str) -> bool:
    """Return whether a backbone is a model of timm."""
    return plain_name(name).startswith(TIMM_PREFIX)


def check_weights(name: str, path: Path) -> None:
    """Refuse a weight file that is not there, and say what the backbone of this name takes."""
    if not is_of_timm(name):
        check_weight_file(path)
        return
    model = name.removesuffix(":pretrained")
    check_weight_file(
        path,
        f"the path of a state dict of that model of timm, or set backbone={model}:pretrained and "
        "weights=none for the weights that timm has",
    )


def _build_timm(name: str, weights: Path | None) -> Backbone:
    _, model, *rest = name.split(":")
    if rest not in ([], ["pretrained"]):
        raise ConfigError(
            f"backbone '{name}': write timm:{model}, or timm:{model}:pretrained for timm's weights"
        )
    if rest and weights is not None:
        raise ConfigError(
            f"backbone '{name}' takes timm's weights, and the weights {weights} were given too: "
            f"write timm:{model} to take those of the file, or weights=none"
        )
    if weights is not None:
        check_weights(name, weights)  # before a large model is made
    backbone = TimmBackbone(model, bool(rest))
    if weights is not None:
        backbone.load(weights)
    return backbone
