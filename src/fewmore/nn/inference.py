"""Make a copy of a backbone that computes features faster on a CPU."""

import copy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fewmore.nn.backbones import Backbone
from fewmore.nn.layers import BatchNormAct2d


def for_inference(backbone: Backbone) -> Backbone:
    """Copy and freeze a backbone, with its batch norms folded into the convolutions before them.

    The features are the same to rounding, and a CPU has them in roughly half to two thirds of the
    time. Batches of 8 to 16 images suit it best: the wide maps of larger ones leave its cache.
    """
    folded = copy.deepcopy(backbone).eval().requires_grad_(False)
    for part in list(folded.modules()):
        for (conv_name, conv), (norm_name, norm) in pairwise(list(part.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, BatchNormAct2d):
                fused = fuse_conv_bn_eval(conv, norm)
                setattr(part, conv_name, _PointwiseConv(fused) if _is_pointwise(fused) else fused)
                setattr(part, norm_name, _FoldedAct(norm.relu))
    placed: Backbone = folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return placed


class _FoldedAct(nn.Module):
    """Add the shortcut and apply the ReLU of a batch norm that was folded away."""

    def __init__(self, relu: bool) -> None:
        super().__init__()
        self.relu = relu

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        if shortcut is not None:
            x = x + shortcut
        return F.relu(x) if self.relu else x


def _is_pointwise(conv: nn.Conv2d) -> bool:
    """Say whether a convolution is 1×1 and oneDNN is there to compute it."""
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_onednn and conv.kernel_size == (1, 1)


class _PointwiseConv(nn.Module):
    """Apply a 1×1 convolution by oneDNN.

    On one thread PyTorch leaves batches of fewer than 16 images to a slower kernel; from about four
    images on, oneDNN is faster.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv
        # While tracing, asking for the length of a batch would fix that length in the graph, and
        # ONNX has no such operator.
        is_traced = torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()
        if not is_traced and _suits_onednn(x):
            return torch.mkldnn_convolution(
                x, conv.weight, conv.bias, (0, 0), conv.stride, conv.dilation, conv.groups
            )
        out: Tensor = conv(x)
        return out


def _suits_onednn(x: Tensor) -> bool:
    return x.is_cpu and x.dtype == torch.float32 and 4 <= len(x) < 16
