"""Backbones: a batch of images to a batch of features, (n, 3, s, s) to (n, d).

Parameters carry torchvision's names, so its published weight files fit as they are. Any model of timm is `timm:NAME`.
"""

import copy
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fewmore.accel.batch_norm import BatchNorm
from fewmore.accel.conv import Conv
from fewmore.errors import ConfigError, DataError, MissingData, UnknownName

_GLOBAL_RANDOMNESS = threading.Lock()  # of the process: runs side by side take turns


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv(before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm(channels)
        self.conv2 = Conv(channels, channels, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != channels:
            self.downsample = nn.Sequential(
                Conv(before, channels, 1, stride, bias=False), BatchNorm(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.bn1(self.conv1(x), relu=True)
        out: Tensor = self.bn2(self.conv2(x), shortcut, relu=True)
        return out


class Backbone(nn.Module):
    """A network that ends in features: `dim` of them an image. `stages` are its parts, from the image on."""

    dim: int

    def maps(self, x: Tensor) -> Tensor:
        """The last feature map, (n, d, h, w)."""
        raise NotImplementedError

    def last_stage(self) -> nn.Module:
        """The part that is trained when only 'the last layer' is."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.maps(x).mean((2, 3))


class ResNet(Backbone):
    """Residual stages of basic blocks, each but the first halving the resolution."""

    def __init__(self, widths: tuple[int, ...], blocks: tuple[int, ...], large_stem: bool) -> None:
        super().__init__()
        self.dim = widths[-1]
        self.conv1 = (
            Conv(3, widths[0], 7, 2, padding=3, bias=False)
            if large_stem
            else Conv(3, widths[0], 3, padding=1, bias=False)
        )
        self.bn1 = BatchNorm(widths[0])
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large_stem else nn.Identity()
        before = widths[0]
        self.depth = len(widths)
        for number, (width, count) in enumerate(zip(widths, blocks, strict=True), 1):
            strides = [1 if number == 1 else 2] + [1] * (count - 1)
            layers = [
                BasicBlock(before if i == 0 else width, width, stride)
                for i, stride in enumerate(strides)
            ]
            self.add_module(f"layer{number}", nn.Sequential(*layers))
            before = width

    def maps(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.bn1(self.conv1(x), relu=True))
        for number in range(1, self.depth + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return x

    def last_stage(self) -> nn.Module:
        return self.get_submodule(f"layer{self.depth}")


def _small_resnet(blocks: int) -> ResNet:
    return ResNet((16, 32, 64), (blocks,) * 3, large_stem=False)


class ConvNorm(nn.Sequential):
    """A convolution that keeps the size at stride 1, then batch norm, then a ReLU that ends at 6."""

    def __init__(
        self, before: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        convolution = Conv(
            before, channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False
        )
        super().__init__(convolution, BatchNorm(channels))

    def forward(self, x: Tensor) -> Tensor:
        convolution, norm = self
        return F.relu6(norm(convolution(x)), inplace=not torch.is_grad_enabled())


class InvertedResidual(nn.Module):
    """Widened by a 1×1 convolution, filtered channel by channel, narrowed without a ReLU; a shortcut joins the narrow ends."""

    def __init__(self, before: int, channels: int, stride: int, widen: int) -> None:
        super().__init__()
        wide = before * widen
        layers: list[nn.Module] = [ConvNorm(before, wide, 1)] if widen > 1 else []
        layers += [
            ConvNorm(wide, wide, 3, stride, groups=wide),
            Conv(wide, channels, 1, bias=False),
            BatchNorm(channels),
        ]
        self.conv = nn.Sequential(*layers)
        self.shortcut = stride == 1 and before == channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.shortcut else out


class MobileNetV2(Backbone):
    """Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks (CVPR 2018), table 2."""

    dim = 1280

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(3, 32, 3, stride=2)]
        before = 32
        for widen, channels, blocks, first_stride in (
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
                    InvertedResidual(before, channels, 1 if block else first_stride, widen)
                )
                before = channels
        self.features = nn.Sequential(*layers, ConvNorm(before, self.dim, 1))

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.features(x)
        return out

    def last_stage(self) -> nn.Module:
        return self.features[-1]


class TimmBackbone(Backbone):
    """A model of timm, without its classifier."""

    def __init__(self, name: str, pretrained: bool) -> None:
        super().__init__()
        try:
            import timm
        except ImportError as error:
            raise ConfigError(
                f"backbone 'timm:{name}' needs the timm package: pip install 'fewmore[timm]' ({error})"
            ) from error
        if name not in timm.list_models():
            raise UnknownName("timm model", name, timm.list_models())
        self.body = timm.create_model(name, pretrained=pretrained, num_classes=0)
        self.dim = int(self.body.num_features)

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.body.forward_features(x)
        return out

    def last_stage(self) -> nn.Module:
        last: nn.Module = list(self.body.children())[-1]
        return last

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


@dataclass(frozen=True)
class BackboneInfo:
    """One row of the table of backbones."""

    build: Callable[[], Backbone]
    dim: int
    remark: str


BACKBONES: dict[str, BackboneInfo] = {
    "resnet8": BackboneInfo(
        lambda: _small_resnet(1), 64, "32-pixel images; a third of resnet20's work, for laptops"
    ),
    "resnet20": BackboneInfo(
        lambda: _small_resnet(3), 64, "32-pixel images; the paper's CIFAR100 network"
    ),
    "resnet18": BackboneInfo(
        lambda: ResNet((64, 128, 256, 512), (2, 2, 2, 2), large_stem=True),
        512,
        "84 pixels and more; the paper's miniImageNet and CUB200 network",
    ),
    "mobilenet_v2": BackboneInfo(
        MobileNetV2, MobileNetV2.dim, "224 pixels; with ImageNet weights, photos on a laptop"
    ),
}


def build(name: str, seed: int = 0, weights: Path | None = None) -> Backbone:
    """A backbone by name, its weights drawn from a seed or read from a file in torchvision's format.

    `timm:NAME` is timm's model of that name, with timm's weights for `timm:NAME:pretrained`.
    """
    if not name.startswith("timm:") and name not in BACKBONES:
        raise UnknownName("backbone", name, [*BACKBONES, "timm:NAME"])
    with (
        _GLOBAL_RANDOMNESS,
        torch.random.fork_rng(devices=[]),
    ):  # constructors draw from the global generator: it is put back as it was
        torch.default_generator.manual_seed(seed)
        if name.startswith("timm:"):
            _, model, *rest = name.split(":")
            if rest not in ([], ["pretrained"]):
                raise ConfigError(
                    f"backbone '{name}': write timm:{model}, or timm:{model}:pretrained for timm's weights"
                )
            return TimmBackbone(model, bool(rest))
        backbone = BACKBONES[name].build()
    initialise(backbone, torch.Generator().manual_seed(seed))
    if weights is not None:
        load_weights(backbone, weights)
    return backbone


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Convolutions from a normal distribution that keeps the gradients' scale; batch norms as the identity."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(
                part.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
            if (
                part.groups > 1
            ):  # an input channel reaches its own group alone, and torch counts all of them
                part.weight.data *= part.groups**0.5


def load_weights(backbone: nn.Module, path: Path) -> None:
    """Read weights in torchvision's format; the classifier's rows and the batch counters in the file are passed over."""
    if not path.exists():
        raise MissingData(
            f"there is no weight file {path}: give the path of a file in torchvision's format, or 'imagenet' to download one"
        )
    try:
        entries = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not its own
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{path} cannot be read as a weight file ({why}): give a file in torchvision's format"
        ) from error
    if not isinstance(entries, dict):
        raise DataError(
            f"{path} holds a {type(entries).__name__}, not a table of weights: give a state dict in torchvision's format"
        )
    entries = {
        str(k): v
        for k, v in entries.items()
        if not re.match(r"(fc|classifier)\.|.*num_batches_tracked$", str(k))
    }
    own = backbone.state_dict()
    missing, extra = sorted(own.keys() - entries.keys()), sorted(entries.keys() - own.keys())
    shaped = [
        k
        for k in own.keys() & entries.keys()
        if not isinstance(entries[k], Tensor) or own[k].shape != entries[k].shape
    ]
    if missing or extra or shaped:
        problems = [
            ("missing", missing),
            ("not of this network", extra),
            ("of another shape", sorted(shaped)),
        ]
        listed = "; ".join(
            f"{len(keys)} {what}, such as {keys[0]}" for what, keys in problems if keys
        )
        raise DataError(f"{path} is not a weight file of this backbone: {listed}")
    set_tensors(backbone, entries)


@torch.no_grad()
def set_tensors(module: nn.Module, entries: dict[str, Tensor]) -> None:
    """Copy a whole state into a module, in place."""
    own = module.state_dict()
    if own.keys() != entries.keys():
        raise DataError(
            f"these weights are another network's: {', '.join(sorted(own.keys() ^ entries.keys())[:3])} … differ"
        )
    for name, tensor in own.items():
        tensor.copy_(entries[name])


class _Folded(nn.Module):
    """What is left of a batch norm whose numbers went into the convolution before it."""

    def forward(self, x: Tensor, shortcut: Tensor | None = None, relu: bool = False) -> Tensor:
        if shortcut is not None:
            x = x + shortcut
        return F.relu(x) if relu else x


class _Pointwise(nn.Module):
    """A 1×1 convolution. On one thread PyTorch hands it to oneDNN from 16 images on, which is quicker from about four on."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        own = self.convolution
        if (
            not torch.compiler.is_compiling()
            and x.is_cpu
            and x.dtype == torch.float32
            and 4 <= len(x) < 16
        ):
            return torch.mkldnn_convolution(
                x, own.weight, own.bias, (0, 0), own.stride, own.dilation, own.groups
            )
        out: Tensor = own(x)
        return out


def for_inference(backbone: Backbone) -> Backbone:
    """A frozen copy for features alone, its batch norms folded into the convolutions before them.

    The features are the same to rounding, and a CPU has them in roughly half to two thirds of the time. Batches of 8 to
    16 images suit it best: the wide maps of larger ones leave its cache.
    """
    folded = copy.deepcopy(backbone).eval().requires_grad_(False)
    for part in list(folded.modules()):
        for (before, convolution), (name, norm) in pairwise(list(part.named_children())):
            if isinstance(convolution, nn.Conv2d) and isinstance(
                norm, BatchNorm
            ):  # in ours, a batch norm follows its convolution
                fused = fuse_conv_bn_eval(convolution, norm)
                pointwise = fused.kernel_size == (1, 1) and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
                setattr(part, before, _Pointwise(fused) if pointwise else fused)
                setattr(part, name, _Folded())
    placed: Backbone = folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return placed


def parameters(module: nn.Module) -> int:
    """How many numbers are learnt."""
    return sum(p.numel() for p in module.parameters())
