"""`fewmore serve`, as a person types it; no socket is answered here."""

import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from fewmore import IncrementalClassifier
from fewmore.cli import classifier as practice
from fewmore.data import glyphs
from fewmore.service.store import Store

Fewmore = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(small_model, "birds.fewmore"))


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The apps that would have been served."""
    found: list[Any] = []

    def serve(app: Any, at: socket.socket) -> None:
        at.close()
        found.append(app)
        with TestClient(app, base_url="http://127.0.0.1"):  # begins and ends
            pass

    monkeypatch.setattr("fewmore.service.server.serve", serve)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    return found


@pytest.fixture
def fewmore(fewmore: Fewmore, apps: list[Any], monkeypatch: pytest.MonkeyPatch) -> Fewmore:
    """With nothing answered, and without a token of the tester's own."""
    monkeypatch.delenv("FEWMORE_TOKEN", raising=False)
    return fewmore


def guard(app: Any) -> Any:
    return app.user_middleware[0].kwargs["access"]


def test_on_this_machine_no_token_is_needed(model: Path, fewmore: Fewmore, apps: list[Any]):
    code, out, err = fewmore("serve", model, "--port", 0)
    assert (code, err) == (0, "")
    assert out.startswith("fewmore is served at http://127.0.0.1:")
    assert "token" not in out
    assert guard(apps[0]).token is None
    assert "localhost" in guard(apps[0]).hosts


def test_elsewhere_one_is_drawn(model: Path, fewmore: Fewmore, apps: list[Any]):
    code, out, _ = fewmore("serve", model, "--port", 0, "--host", "0.0.0.0")
    assert code == 0
    token = out.splitlines()[0].partition("#token=")[2]
    assert len(token) >= 32
    assert guard(apps[0]).token == token
    assert guard(apps[0]).hosts is None
    assert "changes need the token" in out
    assert "this is plain HTTP" in out


def test_a_token_may_be_given(
    model: Path, fewmore: Fewmore, apps: list[Any], monkeypatch: pytest.MonkeyPatch
):
    _, out, _ = fewmore("serve", model, "--port", 0, "--token", "correct-horse", "--private")
    assert "all requests need the token" in out
    assert "#token=correct-horse" in out
    assert guard(apps[0]).needed_for == "everything"
    monkeypatch.setenv("FEWMORE_TOKEN", "battery-staple")
    fewmore("serve", model, "--port", 0)
    assert guard(apps[1]).token == "battery-staple"
    assert guard(apps[1]).needed_for == "changes"


def test_what_cannot_be_served(model: Path, fewmore: Fewmore):
    for words, why in (
        ((), "give a model file, as in fewmore serve birds.fewmore, or --demo, and not both"),
        ((model, "--demo"), "and not both"),
        (("none.fewmore",), "there is no model file none.fewmore"),
        ((model, "--token", "short"), "at least 8 characters"),
        ((model, "--host", "no such host"), "the service cannot listen at no such host, port 8000"),
    ):
        code, _, err = fewmore("serve", *words)
        assert code == 2
        assert why in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = fewmore("serve", model, "--port", taken.getsockname()[1])
        assert code == 2
        assert "the service cannot listen at 127.0.0.1" in err
    Store(model).close()  # each of them let go of the file


def test_without_the_extra_it_says_what_to_install(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "fewmore.service.app", raising=False)
    code, _, err = fewmore("serve", model)
    assert code == 2
    assert "pip install 'fewmore[service]'" in err


def test_other_commands_wait_while_it_is_served(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
):
    store = Store(model)
    monkeypatch.setattr(practice, "PATIENCE", 0.1)
    monkeypatch.setattr("fewmore.service.store.PATIENCE", 0.1)
    assert "another process is writing birds.fewmore: try again" in fewmore("undo", model)[2]
    assert (
        "is served or changed by another process: stop that one first" in fewmore("serve", model)[2]
    )
    store.close()


def test_the_demo_is_trained_once(
    fewmore: Fewmore,
    apps: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_weights: Path,
):
    """With a network that is trained no further, and two images a class."""
    serve = sys.modules["fewmore.cli.serve"]
    trained = []

    def fit(
        self: IncrementalClassifier, images: Any, progress: Any = None
    ) -> IncrementalClassifier:
        trained.append({name: len(own) for name, own in images.items()})
        assert self.recipe is not None
        assert self.recipe.backbone == "resnet8"
        return real(IncrementalClassifier("resnet8", small_weights, device="cpu"), images, progress)

    real = IncrementalClassifier.fit
    monkeypatch.setattr(IncrementalClassifier, "fit", fit)
    monkeypatch.setattr(serve, "DEMO_IMAGES", 3)
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path / "data"))
    for _ in range(2):
        code, _, err = fewmore("serve", "--demo", "--port", 0)
        assert (code, err) == (0, "")
    assert trained == [dict.fromkeys(glyphs.CLASSES[:60], 6)]
    folder = tmp_path / "data" / "demo"
    assert len(list((folder / f"{serve.DEMO}.thumbnails").iterdir())) == 180
    assert IncrementalClassifier.load(folder / serve.DEMO).classes_ == list(glyphs.CLASSES[:60])
