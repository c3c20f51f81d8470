"""Check what is released: wheel, sdist and metadata; and the files of public CI."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fewmore import __version__

ROOT = Path(__file__).resolve().parent.parent
EPOCH = "1700000000"
MAX_WHEEL_BYTES = 2_000_000
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def build(source: Path, target: Path, *kinds: str) -> list[bytes]:
    """Build distributions as `python -m build` does, in this environment; return their bytes."""
    words = [word for kind in kinds for word in ("-t", kind)]
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(target), *words],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [path.read_bytes() for path in sorted(target.iterdir())]


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build(ROOT, folder, "sdist")
    return folder / f"fewmore-{__version__}.tar.gz"


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(sdist, tmp_path_factory.mktemp("unpacked"))


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sdist, as pip does where it takes the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    build(unpacked, folder, "wheel")
    return folder / f"fewmore-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def about(wheel: Path) -> Message:
    """Return the metadata that PyPI shows."""
    text = zipfile.ZipFile(wheel).read(f"fewmore-{__version__}.dist-info/METADATA")
    return Parser().parsestr(text.decode())


def test_the_sdist_has_all_files_of_the_repository(unpacked: Path) -> None:
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no checkout")
    tracked = [name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]
    assert len(tracked) > 500
    missing = [name for name in tracked if not (unpacked / name).exists()]
    assert not missing


def test_two_builds_are_equal_byte_for_byte(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """Build again from an unpacked copy with other times and modes of files."""
    source = unpack(sdist, tmp_path / "copy")
    for path in source.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(path.stat().st_mode & 0o700)  # an executable file stays one
    again = build(source, tmp_path / "again", "sdist", "wheel")
    assert sorted(again) == sorted([sdist.read_bytes(), wheel.read_bytes()])


def test_the_wheel_is_small_and_typed(wheel: Path) -> None:
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    assert "fewmore/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_the_metadata_says_who_and_what(about: Message) -> None:
    assert about["License-Expression"] == "Apache-2.0"
    assert about["License-File"] == "LICENSE"
    assert about["Author"] == "The fewmore developers"
    assert f"name: {about['Author']}" in (ROOT / "CITATION.cff").read_text()
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    links = dict(line.split(", ") for line in about.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog", "Issues"} <= set(links)
    classifiers = about.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert not [line for line in classifiers if line.startswith("License")]  # SPDX says it


def test_the_page_on_pypi_has_whole_addresses_that_lead_to_files(about: Message) -> None:
    """PyPI has no files of the repository beside the page: a relative link leads nowhere there."""
    assert about["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"(!?)\[[^\]]*\]\((.*?)\)", str(about.get_payload()))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(links) == readme.count("](") > 20
    images = "https://raw.githubusercontent.com/fewmore/fewmore/main/"
    files = "https://github.com/fewmore/fewmore/blob/main/"
    for image, address in links:
        assert address.startswith(("https://", "#")), address
        root = images if image else files
        if address.startswith(root):
            assert (ROOT / address.removeprefix(root).partition("#")[0]).exists(), address


def test_every_extra_is_documented(about: Message) -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `fewmore\[(.+?)\]` \| (.*?) \|", page, re.MULTILINE)
    assert {name for name, _ in rows} == set(about.get_all("Provides-Extra", []))
    assert all(purpose for _, purpose in rows), "say behind the extra in pyproject.toml what for"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_actions_and_ask_for_few_rights(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", text)
    remote = [action for action in used if not action.startswith("./")]
    assert [a for a in remote if not re.search(r"@(release/)?v\d+$", a)] == []
    workflow = load_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job or "uses" in job for job in workflow["jobs"].values())


def load_yaml(path: Path) -> Any:
    yaml: ModuleType = pytest.importorskip("yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_tested_versions_of_python_are_the_declared_ones(about: Message) -> None:
    tests = load_yaml(ROOT / ".github" / "workflows" / "tests.yml")
    matrix = tests["jobs"]["versions"]["strategy"]["matrix"]
    prefix = "Programming Language :: Python :: "
    declared = [line.removeprefix(prefix) for line in about.get_all("Classifier", [])]
    assert matrix["python"] == [name for name in declared if re.fullmatch(r"3\.\d+", name)]
    assert about["Requires-Python"] == f">={matrix['python'][0]}"
    assert matrix["torch"] == ["oldest", "newest"]


def test_forms_and_hooks_can_be_read() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    for form in forms:
        assert form.stem == "config" or {"name", "description", "body"} <= set(load_yaml(form))
    assert len(forms) >= 3
    assert load_yaml(ROOT / ".github" / "dependabot.yml")["version"] == 2
    (local,) = load_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert {"ruff", "ruff-format", "mypy", "layers"} <= {hook["id"] for hook in local["hooks"]}


PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]


@pytest.mark.parametrize("name", PAGES)
def test_links_and_paths_of_the_front_pages_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    places = [ROOT / "src" / "fewmore", ROOT]
    for target in re.findall(r"\]\((?!http)([^)#\s]+)", text):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"`([\w./]+/[\w./]+)`", text):
        own = "NAME" in path  # a file that the reader makes
        assert own or any((place / path).exists() for place in places), path


def test_each_way_to_contribute_has_ten_steps() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for what in ("method", "backbone", "benchmark"):
        section = text.partition(f"\n## How to add a {what}\n")[2].partition("\n## ")[0]
        steps = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
        assert steps == list(range(1, 11)), what


def test_tests_never_install_a_browser(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    plugin = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    tools = {"apt-get": "/usr/bin/apt-get", "sudo": "/usr/bin/sudo"}
    monkeypatch.setattr(shutil, "which", tools.get)
    monkeypatch.setenv("CI", "true")

    def refuse(*words: object, **options: object) -> None:
        pytest.fail(f"a test ran {words}")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(pytest.skip.Exception, match="needs Chromium"):
        plugin._chromium_path()
