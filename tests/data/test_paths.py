"""Check where benchmarks and cached files lie."""

from pathlib import Path

import pytest

from fewmore.data.paths import cache_folder, data_root


def test_environment_variables_choose_the_folders(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    assert data_root() == cache / "data"
    monkeypatch.setenv("FEWMORE_DATA", "~/images")
    assert data_root() == Path.home() / "images"
    assert data_root(Path("/elsewhere")) == Path("/elsewhere")
    monkeypatch.delenv("FEWMORE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "fewmore"
