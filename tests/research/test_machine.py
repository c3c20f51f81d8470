"""Test what a result records of the machine and of the code."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import fewmore
from fewmore.research import machine
from fewmore.research.machine import commit, machine_facts, shares_gpu, source_digest


def test_machine_names_what_numbers_depend_on():
    facts = machine_facts()
    names = ["device", "cores", "threads", "fewmore", "torch", "python", "source"]
    assert list(facts) == names
    assert facts["device"]
    assert facts["cores"] >= 1
    assert facts["threads"] == torch.get_num_threads()
    assert facts["fewmore"] == fewmore.__version__
    assert facts["torch"] == torch.__version__
    assert facts["source"] == source_digest()
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Make a small repository that holds this code; return it, the file and a git function."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    package = tmp_path / "src" / "fewmore"
    (package / "research").mkdir(parents=True)
    file = package / "research" / "machine.py"
    file.write_text("one\n")

    def git(*words):
        person = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *person, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    monkeypatch.setattr(machine, "__file__", str(file))
    source_digest.cache_clear()
    yield tmp_path, file, git
    source_digest.cache_clear()
    commit.cache_clear()


def current_commit():
    commit.cache_clear()
    return commit()


def test_commit_is_that_of_the_code(checkout, monkeypatch):
    root, file, git = checkout
    assert current_commit() is None  # in a checkout, but of something else
    git("add", ".")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD")
    assert current_commit() == head[:12]
    (root / "result.json").write_text("{}")  # a new result does not change the code
    assert current_commit() == head[:12]
    monkeypatch.setenv("FEWMORE_COMMIT", "0123456789ab")  # of another copy
    assert current_commit() == head[:12]
    file.write_text("two\n")
    assert current_commit() == "0123456789ab"  # the copy is newer than its history
    monkeypatch.delenv("FEWMORE_COMMIT")
    assert current_commit() == head[:12] + "-dirty"
    git("commit", "-q", "-a", "-m", "two")
    assert commit() == head[:12] + "-dirty", "as it was when the process began"


def test_the_source_digest_is_of_all_source_files_as_they_were_first(checkout):
    root, file, _ = checkout
    package = file.parents[1]
    (package / "cli").mkdir()
    (package / "cli" / "run.py").write_text("run\n")

    def digest() -> str:
        source_digest.cache_clear()
        return source_digest()

    digests = [digest()]
    (package / "published.json").write_text("{}")  # not source
    (root / "other.py").write_text("other\n")  # not of the package
    assert digest() == digests[0]
    (package / "cli" / "run.py").write_text("walk\n")
    assert source_digest() == digests[0]
    digests.append(digest())
    (package / "cli" / "run.py").rename(package / "cli" / "walk.py")
    digests.append(digest())
    assert len(set(digests)) == 3
    assert all(len(text) == 64 for text in digests)


def test_commit_is_not_led_astray_by_the_environment(checkout, monkeypatch, tmp_path_factory):
    _, _, git = checkout
    git("add", ".")
    git("commit", "-q", "-m", "one")
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("elsewhere")))
    assert commit() is not None


def test_commit_is_none_outside_a_checkout_and_without_git(tmp_path, monkeypatch):
    (tmp_path / "fewmore" / "research").mkdir(parents=True)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "fewmore" / "research" / "machine.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert commit() is None
    monkeypatch.setenv("PATH", "")
    assert commit() is None


@pytest.mark.parametrize(
    ("listed", "shared"),
    [
        ("7, python", False),
        ("7, python\n9, /usr/bin/python3", True),
        ("7, python\n8, nvidia-cuda-mps-server", False),
        ("", False),
        (None, False),
    ],
)
def test_other_processes_on_a_gpu_are_counted(monkeypatch, listed, shared):
    asked = []

    def answer(command):
        asked.append(command)
        return listed

    monkeypatch.setattr(machine, "_output", answer)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="ab-12")
    )
    assert shares_gpu(torch.device("cuda", 0)) is shared
    assert asked[0][:3] == ["nvidia-smi", "-i", "GPU-ab-12"]


def test_a_cpu_is_not_asked_about_other_processes(monkeypatch):
    monkeypatch.setattr(machine, "_output", pytest.fail)
    assert not shares_gpu(torch.device("cpu"))
