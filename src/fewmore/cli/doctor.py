"""Define `fewmore doctor`: what is installed, which devices are found, where files lie."""

import json as json_format
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fewmore import __file__ as package_file
from fewmore import __version__
from fewmore.classifier.text import count_noun
from fewmore.cli.describe import format_bytes
from fewmore.cli.model_options import Json
from fewmore.cli.terminal import plain

if TYPE_CHECKING:  # rich is imported when a command runs
    from rich.console import Console
    from rich.table import Table

# Modules besides PyTorch: what each does, and a function that says what it offers.
ENGINES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "onnxruntime": (
        "features on a CPU, and exported models",
        lambda module: ", ".join(module.get_available_providers()),
    ),
    "onnx": ("writes exported models", lambda module: ""),
    "openvino": ("features on a CPU", lambda module: ""),
    "timm": ("more backbones", lambda module: f"{len(module.list_models()):,} models"),
    "triton": ("fused kernels on a GPU", lambda module: ""),
    "pillow_heif": ("reads HEIC photos", lambda module: ""),
}
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[.*?\])?\s*\(?(?P<versions>[^;)]*)\)?")
EXTRA = re.compile(r"extra == ['\"]([\w.-]+)['\"]")


@dataclass(frozen=True)
class Package:
    """Describe a package that fewmore needs, always or for an extra."""

    name: str
    needs: str  # versions, such as ">=2.6"
    extra: str | None  # None: always needed
    version: str | None  # None: not installed

    @property
    def is_too_old(self) -> bool:
        least = re.search(r">=\s*([\d.]+)", self.needs)
        if least is None or self.version is None:
            return False
        return _numbers(self.version) < _numbers(least[1])


@dataclass(frozen=True)
class Found:
    """Describe a device or an engine."""

    name: str
    found: bool
    about: str


@dataclass(frozen=True)
class Folder:
    """Describe a folder of fewmore's files, and what its parts take."""

    name: str
    path: str
    setting: str  # the environment variable that moves it
    exists: bool
    bytes: int = 0
    files: int = 0
    free_bytes: int | None = None
    parts: dict[str, int] = field(default_factory=dict)  # bytes by sub-folder


@dataclass
class Findings:
    """Hold all that the doctor found."""

    fewmore: dict[str, str]
    packages: list[Package] = field(default_factory=list)
    devices: list[Found] = field(default_factory=list)
    engines: list[Found] = field(default_factory=list)
    folders: list[Folder] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def doctor(json: Json = False) -> None:
    """Say what is installed, which devices are found, and where files lie and how large they are.

    Exits with 1 if something that fewmore always needs is missing or broken.

    Example: fewmore doctor --json
    """
    findings = examine()
    if json:
        typer.echo(json_format.dumps(asdict(findings), indent=1, ensure_ascii=False))
    else:
        _print(plain(), findings)
    if findings.problems:
        raise typer.Exit(1)


def examine() -> Findings:
    """Look at this machine; what cannot be found out becomes a problem, never an exception."""
    findings = Findings(
        {
            "version": __version__,
            "installed_in": str(Path(package_file).parent),
            "python": f"{platform.python_version()} ({sys.executable})",
            "system": platform.platform(),
        }
    )
    for step in (_packages, _devices, _engines, _folders):
        try:
            with _quiet():
                step(findings)
        except Exception as error:
            findings.problems.append(f"{step.__name__[1:]}: {_sentence(error)}")
    return findings


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what packages print and warn of while they are imported."""
    with (
        warnings.catch_warnings(),
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def _packages(findings: Findings) -> None:
    try:
        lines = metadata.requires("fewmore") or []
    except metadata.PackageNotFoundError:
        findings.problems.append(
            "fewmore itself is not installed, so what it needs is not known: pip install fewmore"
        )
        return
    for line in lines:
        package = _package(line)
        if package is None:
            continue
        findings.packages.append(package)
        if package.extra is None and (package.version is None or package.is_too_old):
            has = f"{package.version} is installed" if package.version else "it is not installed"
            findings.problems.append(
                f"fewmore needs {package.name} {package.needs}, and {has}: "
                f"pip install '{package.name}{package.needs}'"
            )


def _package(line: str) -> Package | None:
    """Look up a requirement; None for one that other requirements or other systems cover."""
    match = REQUIREMENT.match(line)
    if match is None or match["name"] == "fewmore":
        return None
    _, _, marker = line.partition(";")
    extra = EXTRA.search(marker)
    try:
        version: str | None = metadata.version(match["name"])
    except metadata.PackageNotFoundError:
        version = None
    if version is None and re.search(r"sys_platform|python_version", marker):
        return None
    return Package(match["name"], match["versions"].strip(), extra[1] if extra else None, version)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (2, 6) for 2.6.0rc1 and for 2.6."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _devices(findings: Findings) -> None:
    try:
        import torch

        from fewmore.research.machine import machine_facts

        facts = machine_facts("cpu")
    except Exception as error:
        findings.problems.append(f"PyTorch cannot be imported ({_sentence(error)})")
        return
    threads = count_noun(int(facts["threads"]), "thread")
    about = f"{facts['device']}; {count_noun(int(facts['cores']), 'core')}, {threads}"
    findings.devices.append(Found("cpu", True, about))
    findings.devices += _gpus(torch)
    has_mps = torch.backends.mps.is_available()
    built = "none found" if torch.backends.mps.is_built() else "this PyTorch is built without it"
    findings.devices.append(Found("mps", has_mps, "Apple's GPU" if has_mps else built))


def _gpus(torch: Any) -> list[Found]:
    """List NVIDIA's and AMD's GPUs, or say why there is none."""
    if not torch.backends.cuda.is_built():
        return [Found("cuda", False, "this PyTorch is built without it")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        reason = f" ({_first_line(str(caught[0].message))})" if caught else ""
        return [Found("cuda", False, f"none found{reason}")]
    gpus = []
    for number in range(torch.cuda.device_count()):
        try:
            facts = torch.cuda.get_device_properties(number)
            about = (
                f"{facts.name}; {format_bytes(facts.total_memory)}, compute capability "
                f"{facts.major}.{facts.minor}, CUDA {torch.version.cuda or torch.version.hip}"
            )
            gpus.append(Found(f"cuda:{number}", True, about))
        except Exception as error:  # a GPU that another process broke, or took as a whole
            gpus.append(Found(f"cuda:{number}", False, _sentence(error)))
    return gpus


def _engines(findings: Findings) -> None:
    for name, (purpose, offers) in ENGINES.items():
        try:
            module = import_module(name)
            version = getattr(module, "__version__", "")
            about = ": ".join(filter(None, (f"{version}, {purpose}", offers(module))))
            found = Found(name, True, about)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            reason = "not installed" if missing else f"cannot be imported ({_sentence(error)})"
            found = Found(name, False, f"{reason}; {purpose}")
        findings.engines.append(found)


def _folders(findings: Findings) -> None:
    from fewmore.data import paths

    cache, data = paths.cache_folder(), paths.data_root()
    for name, setting, path, without in (
        ("cache", "FEWMORE_CACHE", cache, data),
        ("data", "FEWMORE_DATA", data, None),
    ):
        findings.folders.append(_folder(name, setting, path, without))
        existing = _existing(path)
        if not existing.is_dir():
            findings.problems.append(f"{existing} is not a folder: set {setting} to another one")
        elif not os.access(existing, os.W_OK | os.X_OK):
            findings.problems.append(f"{existing} cannot be written: set {setting} to another one")


def _folder(name: str, setting: str, path: Path, without: Path | None) -> Folder:
    """Measure a folder; `without` is a folder in it that is not counted."""
    free = shutil.disk_usage(_existing(path)).free
    if not path.is_dir():
        return Folder(name, str(path), setting, False, free_bytes=free)
    parts: dict[str, int] = {}
    files = 0
    for place, folders, names in os.walk(path):
        folders[:] = [folder for folder in folders if Path(place, folder) != without]
        part = next(iter(Path(place).relative_to(path).parts), ".")
        for file in names:
            with suppress(OSError):  # another process removed it
                size = os.lstat(os.path.join(place, file)).st_size
                parts[part] = parts.get(part, 0) + size
                files += 1
    return Folder(name, str(path), setting, True, sum(parts.values()), files, free, parts)


def _existing(path: Path) -> Path:
    """Return the nearest place above a path that is there."""
    return next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(str(error))}"


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[0]


def _print(out: "Console", findings: Findings) -> None:
    about = findings.fewmore
    _print_rows(
        out,
        f"fewmore {about['version']}",
        [
            ("installed in", about["installed_in"]),
            ("Python", about["python"]),
            ("system", about["system"]),
        ],
    )
    _print_rows(out, "Packages", _package_rows(findings.packages))
    for title, found in (("Devices", findings.devices), ("Engines", findings.engines)):
        rows = [(f.name, f.about if f.found else f"– {f.about}") for f in found]
        _print_rows(out, title, rows)
    _print_rows(out, "Folders", [row for folder in findings.folders for row in _sizes(folder)])
    out.print("\nProblems" if findings.problems else "\nNo problems.", style="bold")
    for problem in findings.problems:
        out.print(f"  {problem}")


def _package_rows(packages: list[Package]) -> list[tuple[str, str]]:
    """Return a row for what is always needed, and one for each extra."""
    rows = []
    for extra in dict.fromkeys(package.extra for package in packages):
        of_extra = [package for package in packages if package.extra == extra]
        there = ", ".join(
            f"{p.name} {p.version}{' (too old)' if p.is_too_old else ''}"
            for p in of_extra
            if p.version
        )
        missing = ", ".join(p.name for p in of_extra if p.version is None)
        text = "; ".join(filter(None, (there, missing and f"– not installed: {missing}")))
        if extra and (missing or any(p.is_too_old for p in of_extra)):
            text += f" (pip install 'fewmore[{extra}]')"
        rows.append((f"[{extra}]" if extra else "always", text))
    return rows


def _sizes(folder: Folder) -> list[tuple[str, str]]:
    """Return a row for a folder and one for each of its parts, the largest first."""
    free = "" if folder.free_bytes is None else f"; {format_bytes(folder.free_bytes)} free"
    if not folder.exists:
        return [(folder.name, f"{folder.path}: not there yet{free} (${folder.setting})")]
    size = f"{format_bytes(folder.bytes)} in {count_noun(folder.files, 'file')}"
    rows = [(folder.name, f"{folder.path}: {size}{free} (${folder.setting})")]
    parts = sorted(folder.parts.items(), key=lambda part: -part[1])
    return rows + [(f"  {name}", format_bytes(size)) for name, size in parts if name != "."]


def _print_rows(out: "Console", title: str, rows: list[tuple[str, str]]) -> None:
    """Print a table of two columns below a title."""
    if not rows:
        return
    out.print(f"\n{title}", style="bold")
    out.print(_table(rows))


def _table(rows: list[tuple[str, str]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=True, padding=(0, 1, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return table
