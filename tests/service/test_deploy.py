"""Test the files of deploy/: the commands that they name are run, without Docker or systemd."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

Serving = Callable[..., AbstractContextManager[Any]]
ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TOKEN = "a-token-of-some-length"


def dockerfile() -> dict[str, str]:
    """Return the instructions of the Dockerfile; of several, the last one."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line and line[0] != "#"]
    return dict(lines)


def options_of(command: list[str], model: str) -> list[str]:
    """Return the options of a command that serves this model."""
    verb, path, *options = command
    assert (verb, Path(path).name) == ("serve", model)
    return options


def test_the_image_serves_as_somebody_else_than_root_and_is_healthy(model: Path, serving: Serving):
    image = dockerfile()
    assert int(image["USER"]) > 0
    assert json.loads(image["ENTRYPOINT"]) == ["fewmore"]
    for file in re.findall(r"\S+", image["COPY"])[:-1]:
        assert (ROOT / file).exists()
    options = options_of(json.loads(image["CMD"]), "model.fewmore")
    _, *check = json.loads(image["HEALTHCHECK"].partition(" CMD ")[2])
    with serving(model, *options) as served:
        port = served.url.rpartition(":")[2]
        healthy = [word.replace(":8000/", f":{port}/") for word in check]
        assert healthy != check
        assert subprocess.run([sys.executable, *healthy]).returncode == 0
        served.kill()
        gone = subprocess.run([sys.executable, *healthy], capture_output=True)
        assert gone.returncode != 0


def test_the_image_has_all_files_that_its_build_needs():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+)$", text, re.M) for word in line.split()[:-1]]
    assert set(copied) == kept
    assert all((ROOT / name).exists() for name in kept)


def test_compose_serves_behind_a_proxy(model: Path, serving: Serving, tmp_path: Path):
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    cuda = yaml.safe_load((DEPLOY / "compose.cuda.yaml").read_text())
    service = compose["services"]["fewmore"]
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert (
        f"ARG {next(iter(cuda['services']['fewmore']['build']['args']))}="
        in (DEPLOY / "Dockerfile").read_text()
    )
    (tmp_path / "token").write_text(TOKEN)
    options = options_of(service["command"], "birds.fewmore")
    used = [word.replace("/run/secrets/token", str(tmp_path / "token")) for word in options]
    assert used != options
    check_service(model, serving, used)


def test_the_unit_serves_behind_a_proxy(model: Path, serving: Serving, tmp_path: Path):
    unit = (DEPLOY / "fewmore.service").read_text()
    words = shlex.split(re.findall(r"^ExecStart=(.+)$", unit, re.M)[0])
    assert Path(words[0]).name == "fewmore"
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    options = options_of(words[1:], "birds.fewmore")
    check_service(model, serving, [word.replace("%d", str(tmp_path)) for word in options])


def check_service(model: Path, serving: Serving, options: list[str]) -> None:
    """Ask as a proxy on this machine does."""
    with serving(model, *options) as served:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{served.url.rpartition(':')[2]}",
            headers={"Host": "fewmore.example", "Origin": "https://fewmore.example"},
            timeout=30,
        ) as http:
            assert http.get("/ready").status_code == 200
            assert http.post("/api/sessions/undo").status_code == 401
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            assert http.post("/api/sessions/undo", headers=bearer).status_code == 409
        assert served.stop() == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path):
    unit = (DEPLOY / "fewmore.service").read_text()
    own = tmp_path / "fewmore.service"
    own.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.M))
    done = subprocess.run(["systemd-analyze", "verify", own], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
