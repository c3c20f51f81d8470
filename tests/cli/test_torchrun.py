"""Test `torchrun -m fewmore run`: several processes, one run folder, one voice."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fewmore.research import results

SETTINGS = (
    "backbone=resnet8",
    "transform.size=8",
    "transform.resize=9",
    "pretrain.epochs=2",
    "pretrain.batch=10",
    "pretrain.lr=0.01",
    "session.epochs=1",
)


@pytest.fixture
def process_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what torchrun sets in the first of two processes."""
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)


def torchrun(*words: object) -> subprocess.CompletedProcess[str]:
    """Start two processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", "2", "-m", "fewmore", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_two_processes_write_one_run_folder(
    fewmore: Callable[..., tuple[int, str, str]], tiny_folder: Path
) -> None:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ["run", f"folder:{tiny_folder}", "-m", "icarl", "--device", "cpu", *settings]
    done = torchrun(*words, "--runs", "two")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("run folder:") == 1
    assert "2 processes on cpu" in done.stdout
    [folder] = Path("two").iterdir()
    two = results.read(folder)
    assert two.machine["world_size"] == 2
    assert two.machine["batch_norm"] == "sync"

    code, _, err = fewmore(*words, "--runs", "one", "--fresh")
    assert (code, err) == (0, "")
    [alone] = Path("one").iterdir()
    one = results.read(alone)
    assert one.accuracy[0] == pytest.approx(two.accuracy[0], abs=5)  # sums in another order
    assert one.machine["world_size"] == 1
    assert {path.name for path in folder.rglob("*")} == {path.name for path in alone.rglob("*")}

    # A finished run is shown by the first process alone, and the others end with it.
    done = torchrun(*words, "--runs", "two", "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("all runs are finished") == 1


@pytest.mark.usefixtures("process_of_two")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "glyphs", "-m", "cec", "--parallel", "2"], "compute one run at a time"),
        (
            ["run", "glyphs", "-m", "cec", "--launcher", "ray"],
            "--launcher ray and torchrun exclude",
        ),
        (["methods"], "type fewmore methods without torchrun"),
        (["tune", "glyphs", "-m", "cec"], "only fewmore run trains in several"),
    ],
)
def test_what_torchrun_cannot_do(
    fewmore: Callable[..., tuple[int, str, str]], words: list[str], complaint: str
) -> None:
    code, out, err = fewmore(*words)
    assert (code, out) == (2, "")
    assert err.startswith("fewmore: ")
    assert complaint in err


def test_errors_are_told_by_the_first_process_alone(
    fewmore: Callable[..., tuple[int, str, str]],
    process_of_two: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "no method is named 'cek'" in fewmore("run", "glyphs", "-m", "cek")[2]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    assert fewmore("run", "glyphs", "-m", "cek") == (2, "", "")


def test_batch_norm_is_sync_or_local(fewmore: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = fewmore("run", "glyphs", "-m", "cec", "--device", "cpu", "--batch-norm", "group")
    assert code == 2
    assert "batch_norm must be sync or local, not 'group'" in err
