"""Say where and how a run is computed."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fewmore.errors import ConfigError
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.distributed import BATCH_NORMS, world_size

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
GRAPHS_ALONE = "graphs alone"  # how a fast path without fused layers is described
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Round:
    """Report a round of training: an epoch, or a number of episodes."""

    stage: str
    round: int  # rounds done
    rounds: int
    loss: float
    lr: float
    seconds: float


@dataclass
class Runtime:
    """Hold the device and switches of a run; they change what is learnt by rounding alone."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str | None = None  # of training; None: bf16 on a GPU that has it, else fp32
    accel: bool | frozenset[str] = True  # the GPU fast path, or the names of its parts
    batch_norm: str = "sync"  # in several processes: statistics over all (sync), or in each (local)
    checkpoint: Checkpoint | None = None
    on_round: Callable[[Round], None] = lambda report: None
    stage1_cache: Path | None = None  # where stage 1 is kept for methods with the same settings
    data_root: Path | None = None  # where ImageNet weights are looked for; None: the usual place
    exclusive: bool = True  # no other run shares the GPU, so that one run may fill it
    forbid_sync: bool = False  # raise where a step makes the host wait, or would on a GPU

    def __post_init__(self) -> None:
        if self.precision not in (None, *PRECISIONS):
            raise ConfigError(
                f"precision must be one of {', '.join(PRECISIONS)}, not '{self.precision}'"
            )
        if self.batch_norm not in BATCH_NORMS:
            raise ConfigError(
                f"batch_norm must be {' or '.join(BATCH_NORMS)}, not '{self.batch_norm}'"
            )

    @property
    def cuda(self) -> bool:
        """Say whether the device is a GPU of PyTorch's CUDA interface."""
        return self.device.type == "cuda"

    @property
    def used_precision(self) -> str:
        """Return the precision that training uses on this device."""
        if not self.cuda:
            return "bf16" if self.precision == "bf16" and self.device.type == "cpu" else "fp32"
        if self.precision in (None, "bf16"):
            return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
        return self.precision

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the type of the numbers that a network's layers multiply in training."""
        return AUTOCAST.get(self.used_precision, torch.float32)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a network runs in training."""
        dtype = self.compute_dtype
        return nullcontext() if dtype == torch.float32 else torch.autocast(self.device.type, dtype)

    def describe(self) -> dict[str, str | int]:
        """Return what a result records: precision, fast path, processes and their batch norms."""
        from fewmore.training.fast_path import why_no_fused_layers, why_plain

        reason = why_plain(self)
        if reason is not None:
            accel = f"off: {reason}"
        elif (failure := why_no_fused_layers(self)) is not None:
            graphs = self.accel is True or "graphs" in (self.accel or ())
            accel = f"{GRAPHS_ALONE if graphs else 'off'}: {failure}"
        else:
            accel = "on" if self.accel is True else ", ".join(sorted(self.accel or ()))
        return {
            "precision": self.used_precision,
            "accel": accel,
            "world_size": world_size(),
            "batch_norm": self.batch_norm,
        }

    def notes(self) -> list[str]:
        """Say where the device cannot do what was asked for."""
        notes = []
        if self.precision not in (None, self.used_precision):
            notes.append(
                f"{self.device} does not train in {self.precision}: "
                f"{self.used_precision} is used instead"
            )
        if self.cuda and self.accel and world_size() > 1:
            notes.append(
                f"{world_size()} processes train as plain PyTorch: the GPU fast path is for one"
            )
        return notes
