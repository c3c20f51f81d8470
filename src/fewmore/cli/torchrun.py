"""Take part in a command that torchrun started in several processes.

Each process runs the whole command. The first one writes the run folder and prints; the others have
a folder of their own that is removed at the end, and print nothing but what stops them.
"""

import atexit
import os
import sys
import tempfile
from pathlib import Path

from fewmore.errors import ConfigError


def process_count() -> int:
    """Return how many processes torchrun started, without an import of PyTorch."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def process_number() -> int:
    """Return the number of this process among them, from 0."""
    return int(os.environ["RANK"]) if process_count() > 1 else 0


def silence_others() -> None:
    """Print nothing in other processes than the first: they would all print the same."""
    if process_count() > 1:
        # DistributedDataParallel warns in every process where a loss uses all parameters.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if process_number():
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 until the process ends


def process_prefix() -> str:
    """Return the beginning of a message that says which of several processes it is from."""
    return f"process {process_number()}: " if process_number() else ""


def check_command(name: str | None) -> None:
    """Refuse commands that train nothing, or several networks side by side."""
    if process_count() > 1 and name != "run":
        raise ConfigError(
            f"torchrun started {process_count()} processes, and only fewmore run trains in "
            f"several: type fewmore {name or '--help'} without torchrun"
        )


def join(
    device: str | None, runs: Path, record: Path | None, launcher: str, parallel: int | None
) -> tuple[str | None, Path, Path | None]:
    """Join the other processes; return the device of this one, and where it writes."""
    if process_count() == 1:
        return device, runs, record
    if launcher != "local":
        raise ConfigError(f"--launcher {launcher} and torchrun exclude each other: leave one out")
    if parallel not in (None, 1):
        raise ConfigError(f"--parallel {parallel}: processes of torchrun compute one run at a time")
    import torch.distributed

    from fewmore.training import distributed
    from fewmore.training.device import select_device

    own = str(distributed.start(select_device(device)))
    atexit.register(torch.distributed.destroy_process_group)
    if distributed.is_first():
        return own, runs, record
    sys.stderr = sys.__stderr__  # from here on it may fail where the first does not
    folder = tempfile.TemporaryDirectory(prefix="fewmore-")
    atexit.register(folder.cleanup)
    return own, Path(folder.name), None
