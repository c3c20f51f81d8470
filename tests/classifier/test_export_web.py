"""The web page: it answers as the classifier does, and learns classes by the same arithmetic."""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier import web
from fewmore.classifier.one_file import OneFile
from fewmore.data.paths import data_root
from fewmore.errors import DownloadError, ExportError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Photos = Callable[..., Path]


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Return a function that serves a folder, as any static server does, and gives its address."""
    servers = []

    def serve(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def export_without_graphs(
    classifier: IncrementalClassifier, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write all but the model and what runs it, which takes no package and no download."""

    def write(classifier: IncrementalClassifier, path: Path, *others: object) -> OneFile:
        path.write_bytes(b"a graph")
        return OneFile(path)

    monkeypatch.setattr(web, "to_onnx_file", write)
    monkeypatch.setattr(web, "_runtime_archive", lambda progress: folder)
    monkeypatch.setattr(web, "_copy_runtime", lambda archive, folder: None)
    web.to_web_page(classifier, folder)


def test_an_export_that_fails_half_way_can_be_repeated(
    classifier: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "page"
    with monkeypatch.context() as patch:
        patch.setattr(web, "write_bytes", full_disk)
        with pytest.raises(ExportError, match=r"page cannot be written \(No space left"):
            export_without_graphs(classifier, folder, patch)
    assert list(folder.iterdir()) == []
    export_without_graphs(classifier, folder, monkeypatch)
    assert {"index.html", "model.onnx", "model.json"} <= {path.name for path in folder.iterdir()}


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


CALL = """async (input) => {
  const { combine, learn } = await import("./learning.js");
  const classes = [];
  for (const [name, photos] of input.lessons) {
    const place = classes.findIndex((one) => one.name === name);
    const next = learn(classes[place], name, photos);
    if (place < 0) classes.push(next); else classes[place] = next;
  }
  const about = await (await fetch("model.json")).json();
  return input.outputs.map((output) => combine(about, output, classes));
}"""


@pytest.fixture
def exported(
    classifier: IncrementalClassifier,
    serve: Callable[[Path], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], str]:
    """Return a function that exports the page, and serves it with this in place of its runtime."""

    def exported(runtime: str) -> str:
        export_without_graphs(classifier, tmp_path / "page", monkeypatch)
        (tmp_path / "page" / "ort.wasm.bundle.min.mjs").write_text(runtime)
        return serve(tmp_path / "page")

    return exported


def test_the_arithmetic_of_the_page_is_that_of_the_classifier(
    classifier: IncrementalClassifier,
    photos: Photos,
    serve: Callable[[Path], str],
    chromium: "Browser",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    export_without_graphs(classifier, tmp_path / "page", monkeypatch)
    page = chromium.new_page()
    page.goto(serve(tmp_path / "page"))
    owls = sorted((photos("more", {"owl": 4}) / "owl").iterdir())
    terns = sorted((photos("others", {"tern": 1}) / "tern").iterdir())
    queries = sorted(photos("queries", {"owl": 2, "tern": 1, "jay": 2, "emu": 1}).rglob("*.png"))
    features = classifier.embed(queries)
    outputs = [
        {
            "probabilities": classifier.predict_proba([path])[0].tolist(),
            "familiarity": classifier.predict([path], top=1)[0].familiarity,
            "features": vector.tolist(),
        }
        for path, vector in zip(queries, features, strict=True)
    ]
    vectors = classifier.embed(owls).tolist()
    lessons = [("owl", vectors[:2]), ("tern", classifier.embed(terns).tolist())]
    lessons.append(("owl", vectors[1:]))  # the second photo again, which does not count twice
    answers = page.evaluate(CALL, {"lessons": lessons, "outputs": outputs})
    classifier.learn({"owl": owls, "tern": terns})
    for answer, prediction in zip(
        answers, classifier.predict(queries, top=len(classifier)), strict=True
    ):
        confidences = {row["name"]: row["confidence"] for row in answer["ranked"]}
        for name, confidence in zip(prediction.names, prediction.confidences, strict=True):
            assert confidences[name] == pytest.approx(confidence, abs=1e-4), name
        assert answer["familiarity"] == pytest.approx(prediction.familiarity, abs=1e-5)
        assert answer["known"] == prediction.known
    page.close()


def test_the_page_in_a_browser(
    classifier: IncrementalClassifier,
    photos: Photos,
    serve: Callable[[Path], str],
    chromium: "Browser",
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnxscript", reason="the packages of fewmore[export] are not installed")
    if not (data_root() / web.RUNTIME.path).exists():
        pytest.skip(f"onnxruntime-web is not in the data root: fetch {web.RUNTIME.url}")
    web.to_web_page(classifier, tmp_path / "page")
    page = chromium.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.goto(serve(tmp_path / "page"))
    page.wait_for_selector("body[data-ready]")
    wren = next((photos("some", {"wren": 1}) / "wren").iterdir())
    assert ask(page, wren) == "wren"
    owls = sorted((photos("more", {"owl": 4}) / "owl").iterdir())
    page.fill("#name", "owl")
    page.set_input_files("#lesson-photos", owls[:3])
    page.click("#learn")
    page.get_by_text("owl is learnt from 3 photos.").wait_for()
    assert ask(page, owls[3]) == "owl"
    classifier.learn({"owl": owls[:3]})
    (expected,) = classifier.predict([owls[3]], top=1)
    shown = page.locator("#bars li").first.get_attribute("data-confidence")
    assert float(shown or 0) == pytest.approx(expected.confidences[0], abs=0.02)
    page.reload()  # what was learnt is kept
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#learnt li").count() == 1
    page.fill("#name", "wren")
    page.set_input_files("#lesson-photos", [wren])
    page.click("#learn")
    assert "is in the model already" in page.locator("#lesson-problem").inner_text()
    page.get_by_label("Forget owl").click()
    assert page.locator("#learnt li").count() == 0
    assert problems == []
    page.close()


# In place of onnxruntime-web: every photo is the same to it.
RUNTIME = """
export const env = { wasm: {} };
export class Tensor {}
const answer = { probabilities: [0.5, 0.25, 0.25], familiarity: [0.5], features: [1, 0] };
const outputs = Object.entries(answer).map(([name, data]) => [name, { data }]);
export const InferenceSession = {
  create: async () => ({ run: async () => Object.fromEntries(outputs) }),
};
"""


def test_two_tabs_learn_together(
    exported: Callable[[str], str], photos: Photos, chromium: "Browser"
) -> None:
    address = exported(RUNTIME)
    context = chromium.new_context()
    tabs = [context.new_page() for _ in range(2)]
    for page in tabs:
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
    photo = next((photos("more", {"owl": 1}) / "owl").iterdir())
    for page, name in zip(tabs, ("owl", "tern"), strict=True):
        page.set_input_files("#lesson-photos", photo)
        page.fill("#name", name)
        page.click("#learn")
        for tab in tabs:
            tab.get_by_label(f"Forget {name}").wait_for()
    assert tabs[1].locator("#learnt li").count() == 2
    tabs[0].get_by_label("Forget tern").click()
    tabs[1].get_by_label("Forget tern").wait_for(state="detached")
    assert tabs[1].locator("#learnt li").count() == 1
    tabs[0].fill("#name", "None of these")
    tabs[0].click("#learn")
    assert "No class can be named" in tabs[0].locator("#lesson-problem").inner_text()
    context.close()


def ask(page: "Page", photo: Path) -> str:
    """Show a photo to the page, and return its answer."""
    page.evaluate("document.getElementById('label').textContent = ''")
    page.set_input_files("#photo", photo)
    page.locator("#label:not(:empty)").wait_for()
    return page.locator("#label").inner_text()


# In place of onnxruntime-web: a wide photo is of the first class, and is answered when told so.
SLOW_RUNTIME = """
export const env = { wasm: {} };
export class Tensor {
  constructor(type, data, dims) { this.width = dims[1]; }
}
const run = async ({ image: { width } }) => {
  if (width > 100) await new Promise((resolve) => { window.answer = resolve; });
  const probabilities = width > 100 ? [1, 0, 0] : [0, 1, 0];
  return {
    probabilities: { data: probabilities }, familiarity: { data: [9] }, features: { data: [1, 0] },
  };
};
export const InferenceSession = { create: async () => ({ run }) };
"""


def test_the_answer_to_an_earlier_photo_does_not_replace_that_to_a_later_one(
    classifier: IncrementalClassifier,
    exported: Callable[[str], str],
    chromium: "Browser",
    tmp_path: Path,
) -> None:
    for name, width in (("wide", 200), ("narrow", 50)):
        Image.new("RGB", (width, 50)).save(tmp_path / f"{name}.png")
    page = chromium.new_page()
    page.goto(exported(SLOW_RUNTIME))
    page.wait_for_selector("body[data-ready]")
    page.set_input_files("#photo", tmp_path / "wide.png")
    page.wait_for_function("() => window.answer !== undefined")  # its value would be called
    second = classifier.classes_[1]
    assert ask(page, tmp_path / "narrow.png") == second
    page.evaluate("() => { window.answer(); return new Promise((end) => setTimeout(end, 300)); }")
    assert page.locator("#label").inner_text() == second
    assert page.locator("#preview").evaluate("image => image.naturalWidth") == 50
    page.close()


def test_what_is_written_and_what_is_not(
    classifier: IncrementalClassifier,
    adapted: IncrementalClassifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = tmp_path / web.RUNTIME.path
    archive.write_bytes(b"another file")
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path))
    with pytest.raises(DownloadError, match="is not the published file"):
        web.to_web_page(classifier, tmp_path / "page")
    export_without_graphs(classifier, tmp_path / "page", monkeypatch)
    about = json.loads((tmp_path / "page" / "model.json").read_text(encoding="utf-8"))
    assert about["classes"] == classifier.names
    assert about["learns"] is True
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert names == {"model.json", "model.onnx", *(path.name for path in web.PAGE.iterdir())}
    export_without_graphs(adapted, tmp_path / "page", monkeypatch)
    about = json.loads((tmp_path / "page" / "model.json").read_text(encoding="utf-8"))
    assert about["learns"] is False
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="give a folder that you may write to"):
        web.to_web_page(classifier, tmp_path / "file")


def test_a_folder_of_the_user_stays_as_it_is(
    classifier: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "site" / "index.html"
    own.parent.mkdir()
    own.write_text("my site")
    with pytest.raises(ExportError, match="site has files that fewmore did not export"):
        export_without_graphs(classifier, own.parent, monkeypatch)
    assert [path.read_text() for path in own.parent.iterdir()] == ["my site"]
