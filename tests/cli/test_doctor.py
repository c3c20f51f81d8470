"""Test `fewmore doctor`: whatever is missing or broken is said in a sentence."""

import json
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from fewmore import __version__
from fewmore.cli import doctor as command
from fewmore.cli.describe import format_bytes

ROOT = Path(__file__).resolve().parents[2]
doctor = sys.modules["fewmore.cli.doctor"]
Fewmore = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEWMORE_DATA", raising=False)


def test_the_command_is_registered() -> None:
    assert command is doctor.doctor


def test_the_table_names_versions_devices_and_folders(fewmore: Fewmore, tmp_path: Path) -> None:
    images = tmp_path / "cache" / "images" / "entry"
    images.mkdir(parents=True)
    (images / "pixels").write_bytes(bytes(12_300_000))
    data = tmp_path / "cache" / "data" / "weights"
    data.mkdir(parents=True)
    (data / "resnet18.pth").write_bytes(bytes(2_000))
    code, out, err = fewmore("doctor")
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    assert f"fewmore {__version__}" in lines
    assert any(line.startswith("cpu ") for line in lines)
    assert any(line.startswith("images ") and "12.3 MB" in line for line in lines)
    assert any(line.startswith("weights ") and "2.0 kB" in line for line in lines)
    assert lines[-1] == "No problems."
    shown = (ROOT / "results" / "outputs" / "doctor.txt").read_text(encoding="utf-8")
    labels = re.findall(r"^  (\w\S*)  ", shown[shown.index("Devices") :], re.MULTILINE)
    assert set(labels) == {"cpu", "cuda", "mps", *doctor.ENGINES, "cache", "data"}, (
        "docs/install.md is stale: run docs/outputs.py again"
    )


def test_json_has_the_same(fewmore: Fewmore, tmp_path: Path) -> None:
    (tmp_path / "cache" / "data").mkdir(parents=True)
    (tmp_path / "cache" / "data" / "file").write_bytes(bytes(10))
    (tmp_path / "cache" / "other").write_bytes(bytes(20))
    code, out, err = fewmore("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["fewmore"]["version"] == __version__
    torch = next(p for p in found["packages"] if p["name"] == "torch")
    assert torch["extra"] is None
    assert torch["version"] == metadata.version("torch")
    assert {"cpu", "mps"} <= {device["name"] for device in found["devices"]}
    assert {engine["name"] for engine in found["engines"]} == set(doctor.ENGINES)
    cache, data = found["folders"]
    assert (cache["bytes"], cache["files"]) == (20, 1), "data is counted once"
    assert (data["bytes"], data["files"]) == (10, 1)
    assert data["path"] == str(tmp_path / "cache" / "data")
    assert found["problems"] == []


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("FEWMORE_CACHE", "file", "file is not a folder: set FEWMORE_CACHE to another one"),
        ("FEWMORE_DATA", "file/below", "file is not a folder: set FEWMORE_DATA to another one"),
        ("FEWMORE_CACHE", "~nobody-of-this-name/cache", "folders: RuntimeError: Could not"),
    ],
)
def test_a_folder_that_is_none_is_a_problem(
    fewmore: Fewmore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    problem: str,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, value)
    code, out, err = fewmore("doctor")
    assert (code, err) == (1, "")
    assert problem in out.rpartition("Problems")[2]


def test_an_engine_that_is_missing_or_broken_is_no_problem(
    fewmore: Fewmore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = "import sys\nprint('noise')\nraise OSError('libfoo.so: cannot open\\nsecond line')\n"
    (tmp_path / "timm.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, err = fewmore("doctor")
    assert (code, err) == (0, "")
    assert "timm          – cannot be imported (OSError: libfoo.so: cannot open); more" in out
    assert "onnxruntime   – not installed; features on a CPU, and exported models" in out
    assert "noise" not in out


def test_missing_and_old_packages(fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=99.1",
        "no-such-package>=1",
        "pillow>=10.1",
        'no-such-extra>=2; extra == "wonder"',
        'no-such-extra>=2; sys_platform == "win32" and extra == "wonder2"',
        'fewmore[wonder]; extra == "all"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    code, out, err = fewmore("doctor")
    assert (code, err) == (1, "")
    assert "[wonder]   – not installed: no-such-extra (pip install 'fewmore[wonder]')" in out
    assert "wonder2" not in out
    problems = out.rpartition("Problems\n")[2]
    numpy = metadata.version("numpy")
    assert problems.splitlines() == [
        f"  fewmore needs numpy >=99.1, and {numpy} is installed: pip install 'numpy>=99.1'",
        "  fewmore needs no-such-package >=1, and it is not installed: "
        "pip install 'no-such-package>=1'",
    ]


def test_without_fewmores_own_metadata(fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    code, out, _ = fewmore("doctor")
    assert code == 1
    assert "fewmore itself is not installed" in out


def test_without_torch(fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, err = fewmore("doctor")
    assert (code, err) == (1, "")
    assert "PyTorch cannot be imported (ModuleNotFoundError" in out
    assert "Folders" in out


def test_gpus_are_listed_and_a_broken_one_is_named() -> None:
    def properties(number: int) -> SimpleNamespace:
        if number:
            raise RuntimeError("CUDA error: uncorrectable ECC error\ndetails")
        return SimpleNamespace(name="H200", total_memory=150_000_000_000, major=9, minor=0)

    torch = SimpleNamespace(
        backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: True)),
        version=SimpleNamespace(cuda="12.8", hip=None),
        cuda=SimpleNamespace(
            is_available=lambda: True, device_count=lambda: 2, get_device_properties=properties
        ),
    )
    good, broken = doctor._gpus(torch)
    assert good.about == "H200; 150.0 GB, compute capability 9.0, CUDA 12.8"
    assert (broken.found, broken.about) == (
        False,
        "RuntimeError: CUDA error: uncorrectable ECC error",
    )
    torch.cuda.is_available = lambda: False
    assert doctor._gpus(torch)[0].about == "none found"


@pytest.mark.parametrize(
    ("version", "least", "old"),
    [
        ("2.6.0", "2.6", False),
        ("2.13.0+cpu", "2.6", False),
        ("2.5.1", "2.6", True),
        ("1.0rc1", "1.0", False),
        ("unknown", "1.0", True),
    ],
)
def test_versions_are_compared_by_numbers(version: str, least: str, old: bool) -> None:
    assert doctor.Package("torch", f">={least},<9", None, version).is_too_old == old


def test_sizes_are_short() -> None:
    assert [format_bytes(size) for size in (2_000, 150_000, 12_300_000, 45_600_000_000)] == [
        "2.0 kB",
        "0.1 MB",
        "12.3 MB",
        "45.6 GB",
    ]
