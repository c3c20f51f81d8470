"""Test how the files of onnxruntime-web get beside an exported page, without the network."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from fewmore.classifier import web
from fewmore.data.sources import File
from fewmore.errors import DownloadError


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a small archive in the data root, in the place of the published one."""
    path = tmp_path / "data" / "runtime.tgz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as files:
        for name in (*web.RUNTIME_FILES, "other.js"):
            entry = tarfile.TarInfo(f"package/dist/{name}")
            entry.size = len(name)
            files.addfile(entry, io.BytesIO(name.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = File("http://localhost:9/runtime.tgz", "runtime.tgz", sha256=digest)
    monkeypatch.setattr(web, "RUNTIME", file)
    monkeypatch.setenv("FEWMORE_DATA", str(path.parent))
    return path


def test_the_two_files_that_the_page_needs_are_copied(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    assert web._runtime_archive(None) == archive
    web._copy_runtime(archive, tmp_path / "page")
    copied = {path.name: path.read_text() for path in (tmp_path / "page").iterdir()}
    assert copied == {name: name for name in web.RUNTIME_FILES}


def test_another_file_in_its_place_is_refused(archive: Path) -> None:
    archive.write_bytes(b"something else")
    with pytest.raises(DownloadError, match=r"runtime\.tgz is not the published file.*remove it"):
        web._runtime_archive(None)
    assert archive.read_bytes() == b"something else"
