"""Compute runs in threads, in processes, on a Ray cluster or by Slurm: `--launcher ray`.

May import research.job, research.runner and what is below; the file of a launcher imports its
package. Start at base.py, then remote.py: what all but threads share.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from fewmore.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from fewmore.research.launchers.base import Launcher

__all__ = ["LAUNCHERS", "build", "check"]


class Entry(NamedTuple):
    """Describe a launcher: its class in the file of its name, its package, and its settings."""

    class_name: str
    package: str | None = None
    extra: str | None = None
    settings: tuple[str, ...] = ()


# By the name in --launcher.
LAUNCHERS = {
    "local": Entry("Local"),
    "processes": Entry("Processes", settings=("gpus_per_run", "cpus_per_run")),
    "ray": Entry("Ray", "ray", "cluster", ("address", "gpus_per_run", "cpus_per_run")),
    "slurm": Entry("Slurm", "submitit", "slurm", ("gpus_per_run", "cpus_per_run", "slurm")),
}


def check(name: str, **settings: Any) -> None:
    """Refuse an unknown launcher, a missing package and settings of another launcher.

    A setting that is None was not given.
    """
    if name not in LAUNCHERS:
        raise UnknownName("launcher", name, LAUNCHERS)
    entry = LAUNCHERS[name]
    for setting, value in settings.items():
        if value is not None and setting not in entry.settings:
            takers = [other for other, its in LAUNCHERS.items() if setting in its.settings]
            raise ConfigError(
                f"--{setting.replace('_', '-')} is not for --launcher {name}: leave it out, "
                f"or add --launcher {' or '.join(takers)}"
            )
    if entry.package is not None and find_spec(entry.package) is None:
        raise ConfigError(
            f"--launcher {name} needs the package {entry.package}, which is not installed: "
            f'pip install "fewmore[{entry.extra}]"'
        )


def build(name: str, **settings: Any) -> "Launcher":
    """Return a launcher by its name, ready to compute runs."""
    check(name, **settings)
    module = import_module(f"{__name__}.{name}")
    given = {key: value for key, value in settings.items() if value is not None}
    launcher: Launcher = getattr(module, LAUNCHERS[name].class_name)(**given)
    return launcher
