"""Test the service of a folder of models: one address, shared backbones, a bound on memory."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.errors import ConfigError
from fewmore.service import many
from fewmore.service.guard import Access
from fewmore.service.limits import Limits
from fewmore.service.many import ManyModels, Models, find_model
from fewmore.service.proxy import PublicURL
from fewmore.service.state import restricted_pillow
from fewmore.service.store import Store

TOKEN = "a token that nobody guesses"
Files = list[tuple[str, tuple[str, bytes, str]]]


@pytest.fixture
def folder(small_model: Path, tmp_path: Path) -> Path:
    """Return a folder of three models with the same backbone."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("birds", "beasts", "two words"):
        shutil.copy(small_model, folder / f"{name}.fewmore")
    return folder


@pytest.fixture
def okapis(image: Callable[..., bytes]) -> Files:
    """Return three images to upload."""
    return [("images", (f"{n}.png", image("okapi", n), "image/png")) for n in range(3)]


@contextmanager
def serve(
    folder: Path, access: Access | None = None, **limits: int
) -> Iterator[tuple[Models, Any]]:
    """Serve a folder in this process."""
    models = Models(folder, access or Access(), Limits(**limits), workers=1)
    with TestClient(ManyModels(models), base_url="http://127.0.0.1") as http:
        yield models, http


def loaded(http: Any) -> list[str]:
    """Return the names of the loaded models."""
    return [one["name"] for one in http.get("/api/models").json()["models"] if one["loaded"]]


def test_each_model_learns_and_predicts_by_itself(folder: Path, okapis: Files) -> None:
    with serve(folder) as (_, http):
        names = [one["name"] for one in http.get("/api/models").json()["models"]]
        assert names == ["beasts", "birds", "two words"]
        assert loaded(http) == []
        taught = http.post("/api/models/beasts/classes", data={"name": "okapi"}, files=okapis)
        assert taught.status_code == 200
        likeliest = {
            name: http.post(f"/api/models/{name}/predict", files=okapis).json()["predictions"][0]
            for name in names
        }
        assert likeliest["beasts"]["classes"][0]["name"] == "okapi"
        for name in ("birds", "two words"):
            known = [candidate["name"] for candidate in likeliest[name]["classes"]]
            assert "okapi" not in known
        assert loaded(http) == names
        assert http.get("/api/models/birds").json() == http.get("/models/birds/api/model").json()
    # All is in the files at the end, and their locks are free.
    assert "okapi" in IncrementalClassifier.load(folder / "beasts.fewmore")
    assert "okapi" not in IncrementalClassifier.load(folder / "birds.fewmore")


def test_the_page_and_the_open_inference_protocol_know_the_model(folder: Path) -> None:
    with serve(folder) as (_, http):
        assert 'href="models/two%20words/"' in http.get("/").text
        assert http.get("/models/birds", follow_redirects=False).headers["location"] == "birds/"
        assert http.get("/models/birds").url.path == "/models/birds/"
        assert "<script" in http.get("/models/birds/").text
        assert loaded(http) == []  # the page itself needs no model
        assert http.get("/v2/models/birds").json()["name"] == "birds"
        assert http.get("/v2/health/ready").json()["ready"]
        document = http.get("/models/two words/openapi.json").json()
        assert document["servers"] == [{"url": "/models/two%20words"}]
        assert "/api/predict" in document["paths"]
        counted = http.get("/metrics").text
        assert "fewmore_models_loaded 2.0" in counted
        assert 'method="GET",route="/v2/models/{name}",status="200"} 1.0' in counted


def test_readiness_is_that_of_the_model_if_it_is_loaded(folder: Path) -> None:
    with serve(folder) as (models, http):
        assert http.get("/models/nowhere/ready").status_code == 404
        assert http.get("/models/birds/ready").json() == {"status": "ready"}
        assert models.loads == 0
        http.get("/api/models/birds")
        assert http.get("/models/birds/ready").json() == {"status": "ready", "version": 1}
        models._loaded["birds"].app.state.service.store.trouble = "the disk is full"
        assert http.get("/models/birds/ready").status_code == 503


def test_a_link_to_a_model_file_has_a_name_of_its_own(folder: Path) -> None:
    target = (folder / "birds.fewmore").rename(folder.parent / "version-7.fewmore")
    (folder / "birds.fewmore").symlink_to(target)
    with serve(folder) as (_, http):
        assert http.get("/v2/models/birds").json()["name"] == "birds"
        assert http.get("/api/models/birds").json()["name"] == "birds"


def test_models_share_their_backbone(folder: Path) -> None:
    with serve(folder) as (models, http):
        for name in ("birds", "beasts"):
            assert http.get(f"/api/models/{name}").status_code == 200
        first, second = (one.classifier for one in models._loaded.values())
        assert first.embedder.backbone is second.embedder.backbone
        assert first.embedder.engine is second.embedder.engine
        assert first.model.weights is second.model.weights
        alone = sum(first.model.sizes().values())
        assert models.loaded_bytes < 2 * alone - first.model.sizes()["backbone"] + 1


def test_other_weights_are_not_shared(small_model: Path) -> None:
    first, second, third = (IncrementalClassifier.load(small_model) for _ in range(3))
    image = Image.new("RGB", (24, 24), (200, 30, 30))
    before = second.embed([image])
    assert second.share_backbone(first)
    assert second.embed([image]).equal(before)
    next(iter(third.model.weights.values())).add_(1)
    assert not third.share_backbone(first)


def test_the_model_that_was_idle_longest_makes_room(folder: Path, okapis: Files) -> None:
    with serve(folder, model_bytes=1) as (models, http):
        http.post("/api/models/birds/classes", data={"name": "okapi"}, files=okapis)
        assert loaded(http) == ["birds"]
        assert http.get("/api/models/beasts").status_code == 200
        assert loaded(http) == ["beasts"]
        assert "okapi" in IncrementalClassifier.load(folder / "birds.fewmore")
        assert len(models.backbones._known) == 1
        classes = http.get("/api/models/birds/classes").json()["classes"]
        assert "okapi" in [known["name"] for known in classes]
        assert loaded(http) == ["birds"]
        assert models.loads == 3
        assert Limits().pixels // 2 == Image.MAX_IMAGE_PIXELS  # also after others were closed


def test_a_format_that_a_model_registers_stays_for_the_others() -> None:
    Image.init()
    before = [*Image.ID]
    try:
        with restricted_pillow(10**6):
            with restricted_pillow(10**6):
                Image.ID.append("HEIF")
            assert "HEIF" in Image.ID
            assert "EPS" not in Image.ID
        assert set(Image.ID) == {*before, "HEIF"}
    finally:
        Image.ID[:] = before


def test_a_model_in_use_is_not_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(folder, model_bytes=1) as (_, http):
        # Not through the test client, which cannot leave a stream before its end.
        path = {"type": "http", "method": "GET", "path": "/api/models/birds/events"}
        scope = {**path, "query_string": b"", "headers": [(b"host", b"127.0.0.1")]}
        send = AsyncMock()
        events = http.portal.start_task_soon(http.app, scope, anyio.sleep_forever, send)
        while not send.called:
            assert not events.done()
            time.sleep(0.01)
        with monkeypatch.context() as patch:
            patch.setattr(many, "ROOM_SECONDS", 0.2)
            refused = http.get("/api/models/beasts")
        assert send.call_args_list[0].args[0]["status"] == 200
        assert not events.done()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "in use" in refused.json()["detail"]
        events.cancel()
        assert http.get("/api/models/beasts").status_code == 200


def test_all_who_wait_for_room_wait_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second request come while the first one waits: its time runs from then on."""
    models = Models(folder, Access(), Limits())
    waited: list[float] = []
    now = 100.0

    async def wait_for_room(until: float, _: asyncio.Event) -> None:
        waited.append(until)
        await asyncio.sleep(0)
        raise many.NoRoom

    async def ask_twice() -> None:
        nonlocal now
        first = asyncio.create_task(models._acquire("birds"))
        second = asyncio.create_task(models._acquire("beasts"))
        while not waited:
            assert not first.done()
            await asyncio.sleep(0)
        now += many.ROOM_SECONDS
        await asyncio.gather(first, second, return_exceptions=True)

    monkeypatch.setattr(many, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(models, "_wait_for_room", wait_for_room)
    asyncio.run(ask_twice())
    assert waited == [100 + many.ROOM_SECONDS] * 2


def test_a_model_whose_request_is_cancelled_is_loaded_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = Models(folder, Access(), Limits(), workers=1)
    begun, go_on = threading.Event(), threading.Event()
    really_open = models._open

    def slowly_open(name: str) -> FastAPI:
        begun.set()
        assert go_on.wait(60)
        return really_open(name)

    async def use(name: str) -> None:
        async with models.using(name):
            pass

    async def leave_and_come_back() -> None:
        async with models.lifespan(FastAPI()):
            left = [asyncio.create_task(use(name)) for name in ("birds", "beasts")]
            assert await asyncio.to_thread(begun.wait, 60)
            for request in left:
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
            go_on.set()
            await use("birds")
            assert models.loads == 1, "who waits for another model's loading leaves at once"
            assert models._loaded["birds"].requests == 0

    monkeypatch.setattr(models, "_open", slowly_open)
    asyncio.run(leave_and_come_back())
    Store(folder / "birds.fewmore").close()  # its lock is free


def test_a_request_that_leaves_while_it_waits_for_room_loads_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = Models(folder, Access(), Limits(model_bytes=1), workers=1)
    waiting = asyncio.Event()
    really_wait = models._wait_for_room

    async def wait_for_room(until: float, gone: asyncio.Event) -> None:
        waiting.set()
        await really_wait(until, gone)

    async def leave() -> None:
        async with models.lifespan(FastAPI()), models.using("birds"):
            monkeypatch.setattr(models, "_wait_for_room", wait_for_room)
            left = asyncio.create_task(models._acquire("beasts"))
            await asyncio.wait_for(waiting.wait(), 60)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            async with models._changing:  # it is given back at once, not when there is room
                assert list(models._loaded) == ["birds"]
        assert models.loads == 1

    asyncio.run(asyncio.wait_for(leave(), 120))


def test_documents_name_the_public_address(folder: Path) -> None:
    urls = [PublicURL.parse(url) for url in ("https://a.example", "https://b.example/x/")]
    with serve(folder, Access(public_urls=tuple(urls))) as (_, http):
        document = http.get("/x/models/two words/openapi.json").json()
    assert [server["url"] for server in document["servers"]] == [
        "https://a.example/models/two%20words",
        "https://b.example/x/models/two%20words",
    ]


def test_nothing_is_loaded_without_the_token(folder: Path) -> None:
    with serve(folder, Access(TOKEN)) as (models, http):
        for path in ("/api/models", "/api/models/birds", "/models/birds/metrics", "/api/models/x"):
            assert http.get(path).status_code == 401
        assert http.get("/models/birds/health").status_code == 200
        assert "birds" not in http.get("/").text
        assert models.loads == 0
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert http.get("/api/models/birds", headers=right).status_code == 200
        assert http.get("/api/models/nowhere", headers=right).status_code == 404
        assert http.get("/api/models/..%2Fbirds", headers=right).status_code == 404
        foreign = {**right, "Host": "evil.example"}
        assert http.get("/api/models/birds", headers=foreign).status_code == 400


def test_a_model_that_cannot_be_loaded_leaves_the_others_alone(folder: Path) -> None:
    (folder / "broken.fewmore").write_bytes(b"no model")
    with serve(folder) as (_, http):
        refused = http.get("/api/models/broken")
        assert refused.status_code == 503
        assert str(folder) not in refused.text
        assert http.get("/api/models/birds").status_code == 200
        (folder / "broken.fewmore").unlink()
        assert http.get("/api/models/broken").status_code == 404
        shutil.copy(folder / "birds.fewmore", folder / "late.fewmore")
        assert http.get("/api/models/late").status_code == 200


def test_a_process_that_serves_a_folder(
    folder: Path, okapis: Files, serving: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    with serving(f"--models={folder}") as served:
        http = connect(served).http
        taught = http.post("/api/models/birds/classes", data={"name": "okapi"}, files=okapis)
        assert taught.status_code == 200
        with http.stream("GET", "/api/models/birds/events") as events:
            assert events.status_code == 200
            assert served.stop() == 0  # it does not wait for those who follow changes
    assert "okapi" in IncrementalClassifier.load(folder / "birds.fewmore")


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model file"):
        Models(tmp_path, Access(), Limits())
    with pytest.raises(ConfigError, match="is no folder"):
        Models(tmp_path / "missing", Access(), Limits())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/models", (None, "/api/models")),
        ("/api/models/birds", ("birds", "/api/model")),
        ("/api/models/birds/", ("birds", "/api/model")),
        ("/api/models/birds/classes/images", ("birds", "/api/classes/images")),
        ("/models/birds", ("birds", "/")),
        ("/models/birds/app.js", ("birds", "/app.js")),
        ("/v2/models/birds/infer", ("birds", "/v2/models/birds/infer")),
        ("/api/predict", (None, "/api/predict")),
        ("/", (None, "/")),
    ],
)
def test_which_model_a_path_is_for(path: str, expected: tuple[str | None, str]) -> None:
    assert find_model(path) == expected
