"""Let batch norms take their statistics over the parts of a batch in all processes.

PyTorch's `SyncBatchNorm` is a layer of its own and for GPUs alone. Here every batch norm of a
network, whatever its class, is computed by the same formula on a GPU and by a plain one on a CPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules._functions import SyncBatchNorm
from torch.overrides import TorchFunctionMode


class SyncedBatchNorms(TorchFunctionMode):
    """Compute the batch norms of a forward pass, those in training mode, over all processes."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.batch_norm and kwargs.get("training"):
            return synced_batch_norm(*args, **kwargs)
        return function(*args, **kwargs)


def synced_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Do what `F.batch_norm` does in training, with the mean and variance of all processes."""
    if x.is_cuda:
        settings = (eps, momentum, dist.group.WORLD, dist.get_world_size())
        inputs = (x, weight, bias, running_mean, running_var)
        out: Tensor = SyncBatchNorm.apply(*inputs, *settings)  # type: ignore[no-untyped-call]
        return out
    channels = x.shape[1]
    shape = [1, channels] + [1] * (x.dim() - 2)
    dims = [dim for dim in range(x.dim()) if dim != 1]
    # The counts differ where a batch cannot be split into equal parts.
    count = x.new_full((1,), x.numel() // channels)
    sums = _sum_over_processes(torch.cat([x.sum(dims), count]))
    count = sums[-1].detach()
    mean = sums[:-1] / count
    centred = x - mean.view(shape)
    variance = _sum_over_processes(centred.square().sum(dims)) / count
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(variance * (count / (count - 1)), momentum)
    out = centred * (variance + eps).rsqrt().view(shape)
    if weight is not None:
        out = out * weight.view(shape)
    return out if bias is None else out + bias.view(shape)


def _sum_over_processes(x: Tensor) -> Tensor:
    """Return the sum of the tensors of all processes, for each of which it has gradients."""
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """Add up over processes, in the forward pass and in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total
