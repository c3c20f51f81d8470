"""Record where a result was measured: device, threads, versions, and the code and its commit."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

from fewmore import __version__
from fewmore.data.threads import count_cores
from fewmore.io import hash_files

# Key of a result's machine: whether other processes shared its GPU, so that seconds are too many.
BUSY = "beside other work"


def machine_facts(device: torch.device | str = "cpu") -> dict[str, str | int]:
    """Return the device's name, cores, threads, and the versions and code numbers depend on."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor_name()
    return {
        "device": name,
        "cores": count_cores(),
        "threads": torch.get_num_threads(),
        "fewmore": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "source": source_digest(),
    }


def _processor_name() -> str:
    try:  # on Linux the platform module does not know the model
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), "") or platform.processor() or platform.machine()


def shares_gpu(device: torch.device) -> bool:
    """Say whether other processes compute on a GPU too; False where nvidia-smi cannot tell.

    Seconds that are measured beside other work say little.
    """
    if device.type != "cuda":
        return False
    gpu = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    query = ("--query-compute-apps=pid,process_name", "--format=csv,noheader")
    lines = (_output(["nvidia-smi", "-i", gpu, *query]) or "").splitlines()
    # Process numbers inside a container are others than outside, so this process counts as one.
    return sum("nvidia-cuda-mps-server" not in line for line in lines) > 1


@cache
def source_digest() -> str:
    """Hash all source files of this package, as they were when a run of this process began.

    A copy of the code without its history has no commit of its own. This hash shows whether it is a
    copy of the commit that it names: tests/test_docs.py compares both.
    """
    package = Path(__file__).resolve().parents[1]
    return hash_files(package, package.rglob("*.py"))


@cache
def commit() -> str | None:
    """Return the commit of this code as a run of this process began, or None outside a checkout.

    It ends in "-dirty" if the code was changed since. A copy of the code on another machine has no
    history, or an older one; there, $FEWMORE_COMMIT names the commit that it is a copy of.
    """
    named = os.environ.get("FEWMORE_COMMIT")
    this_file = Path(__file__).resolve()
    package = this_file.parents[1]
    # A package that is installed below a checkout of something else is not tracked there.
    if not _git(package, "ls-files", "--error-unmatch", str(this_file)):
        return named
    version = _git(package, "rev-parse", "--short=12", "HEAD")
    if version and _git(package, "status", "--porcelain", "--", "."):
        return named or f"{version}-dirty"
    return version


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command in a folder, or None if it fails."""
    # Inside a git hook, GIT_* variables point to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return _output(["git", *arguments], folder, environment)


def _output(
    command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None
) -> str | None:
    """Return the output of a command, or None if it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
