"""Test that layers are swapped in while training, and that the fast path can be switched off."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn

from fewmore.accel import PARTS, accelerate, augmentation, engine
from fewmore.accel.batch_norm import FusedBatchNormAct2d
from fewmore.accel.conv import FastConv2d
from fewmore.data import operations
from fewmore.data.policies import apply_policy
from fewmore.data.transform import Transform
from fewmore.nn.backbones import build
from fewmore.nn.layers import BatchNormAct2d

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class FakeRuntime:
    """Stand in for a run on a GPU."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    accel: bool | frozenset[str] = True
    exclusive: bool = False


@pytest.fixture(autouse=True)
def no_warm_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Say that nothing failed in the warm-up, or what did."""
    failures: list[str] = []
    monkeypatch.setattr(engine.warm_up, "finish", lambda device: failures[0] if failures else None)
    return failures


def kinds(network: nn.Module) -> set[type[nn.Module]]:
    """Return the classes of a network's convolutions and batch norms."""
    return {type(m) for m in network.modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)}


def test_layers_are_fast_while_training_and_plain_before_and_after() -> None:
    network = build("resnet8")
    names = list(network.state_dict())
    weight = network.conv1.weight
    with accelerate({"backbone": network}, FakeRuntime()):
        assert kinds(network) == {FastConv2d, FusedBatchNormAct2d}
        assert list(network.state_dict()) == names
        assert network.conv1.weight is weight
    assert kinds(network) == {nn.Conv2d, BatchNormAct2d}


def test_layers_are_plain_again_after_an_error() -> None:
    network = build("resnet8")
    with pytest.raises(RuntimeError), accelerate({"backbone": network}, FakeRuntime()):
        raise RuntimeError
    assert kinds(network) == {nn.Conv2d, BatchNormAct2d}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (frozenset({"conv"}), {FastConv2d, BatchNormAct2d}),
        (frozenset({"batch-norm"}), {nn.Conv2d, FusedBatchNormAct2d}),
        (frozenset({"graphs"}), {nn.Conv2d, BatchNormAct2d}),
    ],
    ids=["conv", "batch-norm", "graphs"],
)
def test_parts_are_switched_on_by_name(parts: frozenset[str], expected: set[type]) -> None:
    network = build("resnet8")
    with accelerate({"backbone": network}, FakeRuntime(accel=parts)) as made:
        assert kinds(network) == expected
        assert made.parts == parts


def test_where_kernels_fail_layers_stay_plain_with_a_warning(no_warm_up: list[str]) -> None:
    no_warm_up.append("CompilationError: no such instruction")
    network = build("resnet8")
    context = accelerate({"backbone": network}, FakeRuntime())
    with pytest.warns(UserWarning, match="no such instruction"):
        made = context.__enter__()
    assert kinds(network) == {nn.Conv2d, BatchNormAct2d}
    assert made.parts == {"graphs"}


def test_swapped_layers_compute_the_same_on_a_cpu() -> None:
    network = build("resnet8")
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = network(x)
    with accelerate({"backbone": network}, FakeRuntime()):
        assert torch.equal(network(x), expected)
    layers = {"batch-norm", "conv", "max-pool"}
    assert {*layers, "augmentation", "side-streams", "graphs"} == PARTS


def test_operations_are_fast_while_training_where_that_is_switched_on() -> None:
    plain = operations.apply_operations
    with accelerate({}, FakeRuntime()):
        assert operations.current_apply() is augmentation.apply_operations
        with accelerate({}, FakeRuntime(accel=PARTS - {"augmentation"})):
            assert operations.current_apply() is augmentation.apply_operations
    assert operations.current_apply() is plain
    with accelerate({}, FakeRuntime(accel=PARTS - {"augmentation"})):
        assert operations.current_apply() is plain


def test_a_policy_is_applied_by_the_current_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it leaves the images to PyTorch, and they are the same."""
    called = []
    fast = augmentation.apply_operations
    monkeypatch.setattr(
        augmentation, "apply_operations", lambda *given: called.append(1) or fast(*given)
    )
    transform = Transform(8, (0.5,) * 3, (0.25,) * 3, policy="autoaugment-cifar10")  # type: ignore[arg-type]
    pixels = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    expected = apply_policy(pixels, transform, torch.Generator().manual_seed(0))
    with accelerate({}, FakeRuntime()):
        found = apply_policy(pixels, transform, torch.Generator().manual_seed(0))
    assert torch.equal(found, expected)
    assert len(called) == 2  # operations of a sub-policy


def without_accel(tmp_path: Path) -> Path:
    """Copy the package and its tests without the fast path."""
    shutil.copytree(REPOSITORY / "src", tmp_path / "src")
    shutil.rmtree(tmp_path / "src" / "fewmore" / "accel")
    shutil.copytree(REPOSITORY / "tests", tmp_path / "tests")
    shutil.rmtree(tmp_path / "tests" / "accel")
    for name in ("docs", "results", "benchmarks"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def run_tests(folder: Path, *selected: str) -> str:
    """Run tests of a copy in a process of its own, and return what it prints."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selected]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


# What trains networks, and one command of each kind. The soak runs everything.
WITHOUT = (
    "tests/nn",
    "tests/training",
    "tests/methods/test_cec.py",
    "tests/research/test_runner.py",
)


def test_with_the_folder_deleted_everything_else_passes(tmp_path: Path) -> None:
    folder = without_accel(tmp_path)
    program = "import fewmore.training.fast_path as f; print(f.__file__, f.accel)"
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(folder / "src/fewmore/training/fast_path.py"), "None"]
    assert " passed" in run_tests(folder, "-x", *WITHOUT)


@pytest.mark.soak
def test_with_the_folder_deleted_the_whole_suite_passes(tmp_path: Path) -> None:
    assert " passed" in run_tests(without_accel(tmp_path), "-n", "2", "tests")
