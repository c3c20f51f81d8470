"""Train one network in several processes, each on its own GPU, with DistributedDataParallel.

torchrun starts the processes, and each runs the same program. They sample the same batches and the
same views from the same seeds. The backbone is where the work is: of a batch, each process computes
the features of its own part, and gets those of the others. All that comes after, such as heads,
losses and queues, sees the whole batch in every process, so that any loss is what it is in one.

Only the first process writes files and prints.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fewmore.errors import ConfigError, StateError
from fewmore.nn.backbones import Backbone
from fewmore.nn.layers import ghost_batch_size

BATCH_NORMS = ("sync", "local")
FEWEST = 2  # images of a process, so that batch norm has a variance
PATIENCE = timedelta(hours=2)  # for the first process, which may have to download a data set

T = TypeVar("T")
Loss = Callable[[Tensor, Generator], Tensor]


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Say whether this process is the one that writes and prints."""
    return world_size() == 1 or dist.get_rank() == 0


def start(device: torch.device) -> torch.device:
    """Join the processes that torchrun started, and return the device of this one."""
    if device.type == "cpu":
        dist.init_process_group("gloo", timeout=PATIENCE)
    elif device.type == "cuda":
        device = torch.device("cuda", _own_gpu(device))
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=PATIENCE)
    else:
        raise ConfigError(f"--device {device}: torchrun is for cuda and cpu")
    return device


def _own_gpu(device: torch.device) -> int:
    """Return the number of this process's GPU."""
    number, processes = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if device.index is not None:
        raise ConfigError(
            f"--device {device}: torchrun gives each process a GPU of its own; use --device cuda"
        )
    if processes > torch.cuda.device_count():
        raise ConfigError(
            f"torchrun started {processes} processes and PyTorch sees "
            f"{torch.cuda.device_count()} GPUs here: lower --nproc-per-node"
        )
    return number


def from_first(compute: Callable[[], T]) -> T:
    """Compute something in the first process, and return it in all of them."""
    if world_size() == 1:
        return compute()
    with first_goes_ahead():
        box: list[Any] = [compute() if is_first() else None]
    dist.broadcast_object_list(box, device=torch.device("cpu"))
    value: T = box[0]
    return value


@contextmanager
def first_goes_ahead() -> Iterator[None]:
    """Let the first process do something before the others, which find what it downloaded."""
    done = torch.zeros(1)
    if not is_first():
        dist.broadcast(done, 0)
        if not done:
            raise StateError("the first process failed, and says why")
    try:
        yield
        done += 1
    finally:
        if is_first() and world_size() > 1:
            dist.broadcast(done, 0)


class OneProcess:
    """Leave a loss as it is."""

    def wrap(self, loss_of: Loss) -> Loss:
        """Return the loss itself."""
        return loss_of

    def finish_backward(self) -> None:
        """Do nothing."""


class ManyProcesses:
    """Split the batches that the backbones of a training see, and add up the gradients."""

    def __init__(self, modules: Mapping[str, nn.Module], batch_norm: str) -> None:
        self.batch_norm = batch_norm
        parts = [part for module in modules.values() for part in module.modules()]
        self.backbones = [part for part in dict.fromkeys(parts) if isinstance(part, Backbone)]
        self.inside = False  # in a backbone; one within it gets a part of the batch already
        parameters = [tensor for module in modules.values() for tensor in module.parameters()]
        # Not every loss uses all parameters.
        caller = _Caller(parameters)
        self.parallel = DistributedDataParallel(caller, find_unused_parameters=True)

    def wrap(self, loss_of: Loss) -> Loss:
        """Return a loss whose backward pass gives every process the gradients of the whole."""
        return partial(self.parallel, loss_of)

    @torch.no_grad()
    def finish_backward(self) -> None:
        """Average the statistics of batch norms that were taken of parts of the batch."""
        statistics = [
            tensor
            for backbone in self.backbones
            if backbone.training and not self._synced(backbone)
            for layer in backbone.modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
            for tensor in (layer.running_mean, layer.running_var)
            if tensor is not None
        ]
        if statistics:
            flat = torch.cat(statistics)
            dist.all_reduce(flat)
            parts = torch.split(flat / world_size(), [len(tensor) for tensor in statistics])
            torch._foreach_copy_(statistics, parts)

    @contextmanager
    def splitting(self) -> Iterator[None]:
        """Let backbones compute their own part of a batch meanwhile."""
        for backbone in self.backbones:
            backbone.forward = partial(  # type: ignore[method-assign]
                self._forward, backbone, backbone.forward
            )
        try:
            yield
        finally:
            for backbone in self.backbones:
                del backbone.forward

    def _forward(
        self, backbone: Backbone, forward: Callable[[Tensor], Tensor], x: Tensor
    ) -> Tensor:
        part = None if self.inside else own_part(len(x), ghost_batch_size(backbone))
        if part is None:  # with too few images, every process computes all of them
            return forward(x)
        self.inside = True
        try:
            with self._statistics(backbone):
                features = forward(x[part])
        finally:
            self.inside = False
        gathered: Tensor = _Gather.apply(features, part, len(x))  # type: ignore[no-untyped-call]
        return gathered

    def _synced(self, backbone: Backbone) -> bool:
        """Say whether batch norms take their statistics over all processes.

        Parts of `ghost` images each lie within one process.
        """
        return self.batch_norm == "sync" and not ghost_batch_size(backbone)

    def _statistics(self, backbone: Backbone) -> Any:
        from fewmore.training.sync_batch_norm import SyncedBatchNorms

        return SyncedBatchNorms() if self._synced(backbone) else nullcontext()


@contextmanager
def split_batches(
    modules: Mapping[str, nn.Module], batch_norm: str
) -> Iterator[OneProcess | ManyProcesses]:
    """Share a training with the other processes, if there are any."""
    if world_size() == 1:
        yield OneProcess()
        return
    together = ManyProcesses(modules, batch_norm)
    with together.splitting():
        yield together


def own_part(images: int, ghost: int = 0) -> slice | None:
    """Return which images of a batch are this process's, or None if there are too few to split.

    Parts of `ghost` images stay together.
    """
    processes, rank = world_size(), dist.get_rank()
    unit = ghost or 1
    units = images // unit
    if units < processes or images < FEWEST * processes:
        return None
    start, end = (number * units // processes * unit for number in (rank, rank + 1))
    return slice(start, images if rank + 1 == processes else end)


class _Caller(nn.Module):
    """Hold all parameters of a training, and call the loss that uses them.

    Buffers are the same in all processes without DistributedDataParallel's help.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.used = nn.ParameterList(parameters)

    def forward(self, loss_of: Loss, row: Tensor, generator: Generator) -> Tensor:
        return loss_of(row, generator)


class _Gather(torch.autograd.Function):
    """Put the features of all processes together, in the order of the batch."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, part: slice, images: int) -> Tensor:
        ctx.part = part
        whole = features.new_zeros(images, *features.shape[1:])
        whole[part] = features
        dist.all_reduce(whole)  # the others' rows are zeros: nothing is rounded
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # All processes compute the same loss. Each passes on the gradient of its own part, and
        # DistributedDataParallel takes the mean where the sum is wanted.
        return gradient[ctx.part] * world_size(), None, None
