"""Test the command `fewmore serve` without serving."""

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
from fewmore.service.limits import Limits
from fewmore.service.store import Store

Fewmore = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(small_model, "birds.fewmore"))


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the apps that would have been served."""
    served: list[Any] = []

    def serve(app: Any, listener: socket.socket, *_: object) -> None:
        listener.close()
        served.append(app)
        with TestClient(app, base_url="http://127.0.0.1"):  # starts and stops
            pass

    monkeypatch.setattr("fewmore.service.server.serve", serve)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr("fewmore.service.logs.configure", lambda _: None)
    return served


@pytest.fixture
def fewmore(fewmore: Fewmore, apps: list[Any], monkeypatch: pytest.MonkeyPatch) -> Fewmore:
    """Run a command without serving, and without a token in the environment."""
    monkeypatch.delenv("FEWMORE_TOKEN", raising=False)
    return fewmore


def access(app: Any) -> Any:
    return app.state.service.access


def test_on_this_machine_no_token_is_needed(model: Path, fewmore: Fewmore, apps: list[Any]):
    code, out, err = fewmore("serve", model, "--port", 0)
    assert (code, err) == (0, "")
    assert out.startswith("fewmore is served at http://127.0.0.1:")
    assert "token" not in out
    assert access(apps[0]).token is None
    assert "localhost" in access(apps[0]).hosts


def test_other_hosts_get_a_random_token(model: Path, fewmore: Fewmore, apps: list[Any]):
    code, out, _ = fewmore("serve", model, "--port", 0, "--host", "0.0.0.0")
    assert code == 0
    token = out.splitlines()[0].partition("#token=")[2]
    assert len(token) >= 32
    assert access(apps[0]).token == token
    assert socket.gethostname().lower() in access(apps[0]).hosts
    assert "all requests need the token" in out
    assert "this is plain HTTP" in out
    code, out, _ = fewmore("serve", model, "--port", 0, "--public-url", "https://birds.example/")
    assert code == 0
    assert f"https://birds.example/#token={access(apps[1]).token}\n" in out
    assert "this is plain HTTP" not in out  # only the proxy's machine connects


def test_a_token_may_be_given_and_is_not_printed(
    model: Path, fewmore: Fewmore, apps: list[Any], monkeypatch: pytest.MonkeyPatch
):
    token = "correct-horse-battery"
    Path("token").write_text(f"{token}\n")
    monkeypatch.setenv("FEWMORE_TOKEN", "battery-staple-horse")
    for words in (("--token", token), ("--token-file", "token"), ()):
        monkeypatch.setenv("FEWMORE_TOKEN", "other-token-entirely" if words else token)
        _, out, _ = fewmore("serve", model, "--port", 0, *words)
        assert "all requests need the token" in out
        assert token not in out
        assert access(apps[-1]).token == token
        assert access(apps[-1]).token_scope == "everything"
    _, out, _ = fewmore("serve", model, "--port", 0, "--public-reading")
    assert "changes need the token" in out
    assert access(apps[-1]).token_scope == "changes"


def test_limits_are_options(model: Path, fewmore: Fewmore, apps: list[Any]):
    words = ("--limit", "images=128", "--limit", "body-seconds=5.5", "--workers", 1)
    code, _, _ = fewmore("serve", model, "--port", 0, "--device", "cpu", *words)
    assert code == 0
    service = apps[0].state.service
    assert service.limits == Limits(images=128, body_seconds=5.5)
    assert service.workers == 1
    assert service.store.device == "cpu"


def test_bad_arguments_are_refused(model: Path, fewmore: Fewmore):
    for words, why in (
        ((), "give a model file"),
        ((model, "--demo"), "and not both"),
        (("none.fewmore",), "there is no model file none.fewmore"),
        ((model, "--token", "too-short"), "at least 16 characters"),
        ((model, "--token", "x" * 16, "--token-file", "y"), "and not both"),
        ((model, "--token-file", "none"), "cannot be read from none"),
        ((model, "--public-url", "birds.example"), "is no public URL"),
        ((model, "--trusted-proxy", "nginx"), "an address or a network"),
        ((model, "--image-host", "a/b"), "is no host of images"),
        ((model, "--limit", "imges=3"), "did you mean images"),
        ((model, "--limit", "images=many"), "no number above 0"),
        ((model, "--limit", "images"), "no number above 0"),
        ((model, "--device", "abacus"), "take auto, cpu, cuda or mps"),
        ((model, "--log-format", "xml"), "json"),
        ((model, "--tls-key", "key.pem"), "--tls-cert"),
        ((model, "--tls-cert", "none.pem"), "cannot be used for TLS (No such file"),
        ((model, "--tls-cert", model), "cannot be used for TLS"),
        ((model, "--host", "no such host"), "cannot listen at no such host"),
    ):
        code, _, err = fewmore("serve", *words)
        assert code == 2
        assert why in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = fewmore("serve", model, "--port", taken.getsockname()[1])
        assert code == 2
        assert "cannot listen at 127.0.0.1" in err
    Store(model).close()  # each of them released the file


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
    monkeypatch.setattr(sys.modules["fewmore.cli.learn"], "LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr("fewmore.service.store.LOCK_TIMEOUT", 0.1)
    assert "another process" in fewmore("undo", model)[2]
    assert "another process" in fewmore("serve", model)[2]
    store.close()


def test_the_demo_is_copied_once_and_keeps_what_it_is_taught(
    fewmore: Fewmore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path / "data"))
    assert fewmore("serve", "--demo", "--port", 0)[::2] == (0, "")
    (path,) = (tmp_path / "data").rglob("*.fewmore")
    classifier = IncrementalClassifier.load(path)
    classifier.forget(["A"])
    classifier.save(path)
    assert fewmore("serve", "--demo", "--port", 0)[::2] == (0, "")
    assert "A" not in IncrementalClassifier.load(path).classes_
