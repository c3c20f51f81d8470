"""Send what happens in a run to other programs: `fewmore run … --log csv --log tensorboard`.

May import methods, training and research.experiment; each file imports its own package when used.
Start at base.py; a logger is one small file with one class.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

from fewmore.errors import ConfigError, UnknownName
from fewmore.research.loggers.base import Broadcast, Logger, RunFacts

# By the name in --log: the file and class here, and the package that is needed.
LOGGERS = {
    "csv": ("csv_file", "CsvLogger", None),
    "tensorboard": ("tensorboard", "TensorBoardLogger", "tensorboard"),
    "wandb": ("wandb", "WandbLogger", "wandb"),
    "mlflow": ("mlflow", "MlflowLogger", "mlflow"),
}

__all__ = ["LOGGERS", "Broadcast", "Logger", "RunFacts", "check", "opened"]


def check(names: Sequence[str]) -> None:
    """Refuse unknown loggers and those whose package is missing, before anything is trained."""
    for name in names:
        if name not in LOGGERS:
            raise UnknownName("logger", name, LOGGERS)
        package = LOGGERS[name][2]
        if package is not None and find_spec(package) is None:
            raise ConfigError(
                f"--log {name} needs the package {package}, which is not installed: "
                f'pip install "fewmore[{name}]"'
            )


@contextmanager
def opened(names: Sequence[str], facts: RunFacts) -> Iterator[Broadcast]:
    """Open loggers for one run, and close them whether it ends or fails."""
    check(names)
    broadcast = Broadcast()
    failed = True
    try:
        for name in dict.fromkeys(names):
            broadcast.add(name, _open(name, facts))
        yield broadcast
        failed = False
    finally:
        broadcast.close(failed)


def _open(name: str, facts: RunFacts) -> Logger:
    file, class_name, _ = LOGGERS[name]
    try:
        logger: Logger = getattr(import_module(f"{__name__}.{file}"), class_name)(facts)
    except Exception as error:  # whatever a package raises where it has no server, key or disk
        raise ConfigError(f"--log {name} cannot begin: {error}") from error
    return logger
