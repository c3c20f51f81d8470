"""Choose the device of a run, and get it ready."""

import torch

from fewmore.errors import ConfigError
from fewmore.training.distributed import world_size
from fewmore.training.fast_path import start_warm_up

# Kernels that cuDNN times for a shape: the fastest is hardly ever further down its list.
CUDNN_CANDIDATES = 4


def select_device(name: str | None) -> torch.device:
    """Return the named device, or the GPU where there is one."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (colon and not number.isdecimal()):
        raise ConfigError(f"--device {name}: there is no such device; use cpu, cuda or mps")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"--device {name}: PyTorch sees no Apple GPU here; use --device cpu")
    count = torch.cuda.device_count()
    if kind == "cuda" and int(number or 0) >= count:
        seen = f"only {count} GPUs, numbered from 0" if count else "no GPU"
        usable = "cuda" if count else "cpu"
        raise ConfigError(f"--device {name}: PyTorch sees {seen} here; use --device {usable}")
    return torch.device(name)


def prepare_device(device: torch.device, accel: bool = True, precision: str | None = None) -> None:
    """Set what training wants of a GPU, and warm it up in the background; a CPU needs nothing."""
    if device.type != "cuda":
        return
    enable_cudnn_benchmark()
    if precision in ("fp32", "tf32"):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
    if accel and world_size() == 1:
        start_warm_up(device)


def enable_cudnn_benchmark() -> None:
    """Let cuDNN time its kernels on each new shape; to be called before the first step."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = CUDNN_CANDIDATES
