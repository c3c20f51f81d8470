"""Sharing on the Hugging Face Hub, against a server here that knows the few routes it takes."""

import base64
import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from fewmore import IncrementalClassifier, cli
from fewmore.classifier.card import MAX_LISTED, model_card
from fewmore.errors import DownloadError, ModelFileError

pytest.importorskip("huggingface_hub")
from huggingface_hub import ModelCard, constants

COMMIT = "c" * 40


class StandIn(BaseHTTPRequestHandler):
    """Answer as the Hub does, for one repository held in memory."""

    files: dict[str, bytes]
    created: list[dict[str, Any]]

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        address = f"http://{self.headers['Host']}"
        if self.headers["Authorization"] != "Bearer hf_right":
            self.answer({"error": "Invalid username or password."}, 401)
            return
        if self.path == "/api/repos/create":
            request = json.loads(body)
            self.created.append(request)
            name = f"{request.get('organization', 'user')}/{request['name']}"
            self.answer({"url": f"{address}/{name}", "name": name, "id": "1"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif re.fullmatch("/api/models/user/birds/preupload/main", self.path):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif re.fullmatch("/api/models/user/birds/commit/main", self.path):
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer(
                {
                    "success": True,
                    "commitOid": COMMIT,
                    "commitUrl": f"{address}/user/birds/commit/{COMMIT}",
                }
            )
        else:
            self.answer({"error": "not found"}, 404)

    def do_GET(self) -> None:
        found = re.fullmatch(f"/user/birds/resolve/(main|{COMMIT})/(.+)", self.path)
        if found and found[2] in self.files:
            self.answer_file(self.files[found[2]])
        elif self.created and self.path.startswith("/api/models/user/birds"):
            siblings = [{"rfilename": name} for name in self.files]
            self.answer({"id": "user/birds", "sha": COMMIT, "siblings": siblings})
        else:
            self.answer({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def answer(self, body: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        headers = {"Content-Type": "application/json", **(headers or {})}
        self.send(json.dumps(body).encode(), code, headers)

    def answer_file(self, data: bytes) -> None:
        etag = hashlib.sha1(data).hexdigest()
        self.send(data, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def send(self, data: bytes, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def small_photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (40, 30), "green").save(path)
    return path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[StandIn]]:
    """Run the stand-in, and send every request of huggingface_hub to it."""
    handler = type("Handler", (StandIn,), {"files": {}, "created": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{http.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield handler
    http.shutdown()
    http.server_close()
    thread.join()


Queries = dict[str, list[Tensor]]


def test_push_and_pull(clf: IncrementalClassifier, queries: Queries, server: type[StandIn]):
    clf.learn({"okapi": queries["class 6"]})
    address = clf.push_to_hub("user/birds", license="cc-by-4.0", token="hf_right", private=True)
    assert address.endswith(f"/user/birds/commit/{COMMIT}")
    (created,) = server.created
    assert (created["name"], created["organization"]) == ("birds", "user")
    assert set(server.files) == {"model.fewmore", "README.md"}
    pulled = IncrementalClassifier.from_pretrained("user/birds", device="cpu")
    assert pulled.info() == clf.info()
    assert pulled.predict(queries["class 1"]) == clf.predict(queries["class 1"])
    card = ModelCard(server.files["README.md"].decode())
    assert card.data.license == "cc-by-4.0"
    assert 'from_pretrained("user/birds")' in card.text


def test_what_the_hub_refuses(
    clf: IncrementalClassifier, server: type[StandIn], monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(DownloadError, match=r"could not be pushed to user/birds .*hf auth login"):
        clf.push_to_hub("user/birds", token="hf_wrong")
    for name in ("user/birds", "nobody/none", "not a name!", "a/b/c"):
        with pytest.raises(DownloadError, match=r"no model\.fewmore could be had from the Hub"):
            IncrementalClassifier.from_pretrained(name)
    assert server.files == {}
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="could not be pushed to user/birds"):
        clf.push_to_hub("user/birds", token="hf_right")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for use in (clf.push_to_hub, IncrementalClassifier.from_pretrained):
        with pytest.raises(DownloadError, match=r"pip install 'fewmore\[hub\]'"):
            use("user/birds")


def test_a_folder(
    clf: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path
):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # not needed for it
    clf.save_pretrained(tmp_path / "birds", license="mit")
    assert IncrementalClassifier.from_pretrained(tmp_path / "birds").info() == clf.info()
    assert IncrementalClassifier.from_pretrained(str(trained)).info() == clf.info()
    card = tmp_path / "birds" / "README.md"
    assert card.read_text(encoding="utf-8") == model_card(clf.info(), "birds", "mit")
    card.write_text("my own words")
    clf.forget("class 1")
    clf.save_pretrained(tmp_path / "birds")
    assert card.read_text() == "my own words"
    assert "class 1" not in IncrementalClassifier.from_pretrained(tmp_path / "birds")
    with pytest.raises(ModelFileError, match="there is no model file"):
        IncrementalClassifier.from_pretrained(tmp_path)
    with pytest.raises(ModelFileError, match=r"cannot be written \(.*: give a folder of yours"):
        clf.save_pretrained(card)


def test_the_card_in_the_folder_of_now_has_a_title(
    clf: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "birds").mkdir()
    monkeypatch.chdir(tmp_path / "birds")
    clf.save_pretrained(".")
    assert "# birds\n" in Path("README.md").read_text(encoding="utf-8")


# Model cards


def test_the_card_says_what_was_measured_and_when(clf: IncrementalClassifier, queries: Queries):
    info = clf.info()
    text = model_card(info, "user/birds", "apache-2.0")
    data = ModelCard(text).data
    assert (data.library_name, data.license) == ("fewmore", "apache-2.0")
    assert data.pipeline_tag == "image-classification"
    (result,) = data.eval_results
    accuracy = info["calibration"]["accuracy"]
    assert result.metric_value == pytest.approx(accuracy, abs=1e-4)
    assert f"{100 * accuracy:.1f} % of {info['calibration']['held_out']} held-out images" in text
    assert "of the 6 classes of the training" in text
    assert info["history"][0]["when"] in text
    assert "| class 3 | 8 |" in text
    assert "expected calibration error" in text
    assert "nothing was measured" not in text
    clf.learn({"okapi": queries["class 6"]})
    text = model_card(clf.info(), "user/birds")
    assert "there was 1 change of the classes, after which nothing was measured" in text
    assert "without a stated license" in text
    assert ModelCard(text).data.license is None


def test_a_card_of_what_was_not_measured(clf: IncrementalClassifier):
    info = clf.info()
    info["calibration"] |= {"accuracy": None, "held_out": 0}
    info["classes"] = {"a|b *c*": 1, **{str(i): 1 for i in range(MAX_LISTED)}}
    text = model_card(info, "birds")
    assert "Nothing was measured" in text
    assert ModelCard(text).data.eval_results is None
    assert r"| a\|b \*c\* | 1 |" in text
    assert "And 1 more." in text


def test_the_command_prints_the_card(clf: IncrementalClassifier, trained: Path):
    result = CliRunner().invoke(cli.app, ["card", str(trained), "--license", "mit"])
    assert result.exit_code == 0
    assert result.output == model_card(clf.info(), "user/tiny", "mit")


def test_the_snippet_of_the_card_runs(
    clf: IncrementalClassifier,
    small_photo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    clf.save_pretrained("birds")
    (snippet,) = re.findall(r"```python\n(.*?)```", Path("birds/README.md").read_text(), re.DOTALL)
    exec(snippet, {})
    assert capsys.readouterr().out.strip()
