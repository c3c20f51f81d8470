"""Test the API inside this process."""

import io
import re
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from PIL import EpsImagePlugin, Image
from prometheus_client.parser import text_string_to_metric_families

from fewmore import IncrementalClassifier, __version__
from fewmore.classifier.model_file import locked
from fewmore.service.database import Database
from fewmore.service.guard import Access
from fewmore.service.limits import Limits
from fewmore.service.metrics import Metrics, Value

TOKEN = "a-token-of-some-length"
Inside = Callable[..., AbstractContextManager[Any]]
MakeImage = Callable[..., bytes]


def problem(response: Any, status: int, detail: str) -> None:
    """Check that the response is a problem with this status and a matching message."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body.keys() == {"type", "title", "status", "detail"}
    assert body["status"] == status
    assert re.search(detail, body["detail"]), body["detail"]


# Predicting and teaching


def test_one_and_many_images_are_predicted(client: Any, image: MakeImage, model: Path):
    images = [image(name, 7) for name in ("robin", "wren", "jay", "wren")]
    found = client.predict(*images, top=2).json()
    assert found["version"] == 1
    expected = IncrementalClassifier.load(model).predict(images, top=2)
    for one, other in zip(found["predictions"], expected, strict=True):
        assert [candidate["name"] for candidate in one["classes"]] == list(other.names)
        assert [candidate["confidence"] for candidate in one["classes"]] == pytest.approx(
            other.confidences, abs=1e-4
        )
        assert one["known"] == other.known
        assert one["familiarity"] == pytest.approx(other.familiarity, abs=1e-4)
    assert len(client.predict(images[0], top=100).json()["predictions"][0]["classes"]) == 3


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", 3),
        ("?top=2", 2),
        ("?top=%32", 2),
        ("?top=02", 2),
        ("?top=100", 3),
        ("?top=1&top=2", 2),
        ("?other=1", 3),
        ("?top=0", "top: Input should be greater than or equal to 1"),
        ("?top=101", "top: Input should be less than or equal to 100"),
        ("?top=x", "top: Input should be a valid integer"),
        ("?top=", "top: Input should be a valid integer"),
    ],
)
def test_every_query_is_checked(client: Any, image: MakeImage, query: str, found: int | str):
    response = client.http.post(f"/api/predict{query}", files={"images": image("jay")})
    if isinstance(found, str):
        problem(response, 422, found)
    else:
        assert len(response.json()["predictions"][0]["classes"]) == found


def test_forms_without_images_are_refused(client: Any, image: MakeImage):
    def send(**form: Any) -> Any:
        return client.http.post("/api/predict", **form)

    problem(send(), 422, "images: Field required")
    problem(send(json={"images": []}), 422, "images: Field required")
    problem(send(data={"images": "text"}), 422, "images")
    problem(send(files={"other": image("jay")}), 422, "images: Field required")
    forgotten = send(files={"images": (None, "jay.png")})  # the @ of curl's -F images=@jay.png
    problem(
        forgotten, 422, r"images\.0: a text came instead of a file; curl sends one by -F images=@"
    )
    text = r"images\.\d: a text came instead of a file; curl sends one by -F images=@FILE"
    problem(send(data={"images": "text"}, files={"images": image("jay")}), 422, text)
    head = {"Content-Type": "multipart/form-data; boundary=x"}
    problem(send(content=b"--x\r\n\r\n", headers=head), 400, "")
    response = send(data={"other": "text"}, files={"images": image("jay")})
    assert response.status_code == 200


def test_a_class_is_taught_and_recognised_at_once(client: Any, image: MakeImage):
    taught = client.teach("okapi")
    assert taught.status_code == 200
    assert taught.json() | {"warnings": []} == {
        "version": 2,
        "name": "okapi",
        "images": 3,
        "added": 3,
        "warnings": [],
        "session": 1,
    }
    found = client.predict(image("okapi", 9)).json()
    assert found["version"] == 2
    assert found["predictions"][0]["classes"][0]["name"] == "okapi"
    assert client.classes() == {"jay": 4, "robin": 5, "wren": 5, "okapi": 3}


def test_teaching_equals_learning_with_the_library(client: Any, image: MakeImage, model: Path):
    images = [image("okapi", number) for number in range(5)]
    client.teach("okapi", *images)
    downloaded = client.http.get("/api/model/file")
    assert downloaded.headers["content-disposition"] == 'attachment; filename="birds.fewmore"'
    (model.parent / "copy.fewmore").write_bytes(downloaded.content)
    local = IncrementalClassifier.load(model)
    served = IncrementalClassifier.load(model.parent / "copy.fewmore")
    local.learn({"okapi": images})
    for a, b in zip(local.model.class_set.classes, served.model.class_set.classes, strict=True):
        assert (a.name, a.count, a.hashes) == (b.name, b.count, b.hashes)
        assert a.feature_sum.tolist() == pytest.approx(b.feature_sum.tolist(), abs=1e-4)


def test_images_are_added_once(client: Any, image: MakeImage):
    client.teach("okapi", image("okapi", 0), image("okapi", 1))
    more = client.teach("okapi", image("okapi", 1), image("okapi", 2), add=True).json()
    assert (more["images"], more["added"], more["version"]) == (3, 1, 3)
    assert any("image 1 of okapi is a duplicate" in warning for warning in more["warnings"])
    none = client.teach("okapi", image("okapi", 2), add=True).json()
    assert (none["images"], none["added"], none["version"]) == (3, 0, 3)


def test_names_are_text(client: Any):
    for name in (
        "../../etc/passwd",
        "<script>alert(1)</script>",
        "a/b?c#d&e=f",
        "鳥 🐦",
        "..",
        "%2e%2e",
        "'; drop table",
    ):
        assert client.teach(name).status_code == 200, name
        assert client.http.delete("/api/classes", params={"name": name}).json()["name"] == name
        assert client.http.post("/api/sessions/undo").status_code == 200
        assert name in client.classes()
    assert client.teach(" okapi ").json()["name"] == "okapi"


def test_classes_are_forgotten_renamed_and_brought_back(client: Any):
    client.teach("okapi")
    renamed = client.http.patch(
        "/api/classes", params={"name": "okapi"}, json={"name": "forest giraffe"}
    ).json()
    assert renamed == {"version": 3, "name": "forest giraffe", "images": 3}
    assert client.http.delete("/api/classes", params={"name": "robin"}).json() == {
        "version": 4,
        "name": "robin",
        "images": 5,
    }
    assert client.classes() == {"jay": 4, "wren": 5, "forest giraffe": 3}
    undone = client.http.post("/api/sessions/undo").json()
    assert undone["version"] == 5
    assert undone["undone"].startswith("undone: the forgetting of robin (")
    sessions = client.http.get("/api/sessions").json()
    assert [(one["number"], one["kind"], one["classes"]) for one in sessions["sessions"]] == [
        (0, "fit", ["jay", "robin", "wren"]),
        (1, "learn", ["okapi"]),
        (2, "rename", ["okapi", "forest giraffe"]),
    ]
    assert sessions["undoable"]
    client.http.post("/api/sessions/undo")
    client.http.post("/api/sessions/undo")
    problem(client.http.post("/api/sessions/undo"), 409, "there is nothing to undo")
    assert not client.http.get("/api/sessions").json()["undoable"]


def test_classes_are_listed_in_pages(client: Any):
    client.teach("okapi")
    found = client.http.get("/api/classes", params={"offset": 1, "limit": 2}).json()
    assert found["total"] == 4
    assert [one["name"] for one in found["classes"]] == ["robin", "wren"]
    found = client.http.get("/api/classes", params={"query": "OKA"}).json()
    assert [(one["name"], one["taught"]) for one in found["classes"]] == [("okapi", True)]
    client.http.patch("/api/classes", params={"name": "wren"}, json={"name": "bird"})
    assert [one["taught"] for one in client.http.get("/api/classes").json()["classes"]] == [
        False,
        False,
        False,
        True,
    ]


def test_the_map_has_every_class(client: Any):
    client.teach("okapi")
    found = client.http.get("/api/map").json()
    assert [one["name"] for one in found["classes"]] == ["jay", "robin", "wren", "okapi"]
    assert all(
        -1 <= value <= 1 for one in found["classes"] for value in (*one["before"], *one["after"])
    )
    assert client.http.get("/api/map").json() == found
    for name in list(client.classes()):
        client.http.delete("/api/classes", params={"name": name})
    assert client.http.get("/api/map").json()["classes"] == []


def test_thumbnails_are_stored_shown_and_removed(client: Any, model: Path):
    client.teach("okapi")
    (okapi,) = client.http.get("/api/classes", params={"query": "okapi"}).json()["classes"]
    assert len(okapi["thumbnails"]) == 3
    downloaded = client.http.get(okapi["thumbnails"][0])
    assert downloaded.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(downloaded.content)).size == (96, 96)
    folder = model.with_name("birds.fewmore.thumbnails")
    assert len(list(folder.iterdir())) == 3
    problem(
        client.http.get("/api/thumbnails/0123456789abcdef"),
        404,
        "there is no thumbnail 0123456789abcdef",
    )
    problem(client.http.get("/api/thumbnails/..%2f..%2fx"), 404, "nothing here")
    for path in folder.iterdir():
        path.unlink()
    problem(client.http.get(okapi["thumbnails"][0]), 404, "there is no thumbnail")


def test_thumbnails_can_be_turned_off(model: Path, inside: Inside):
    with inside(model, thumbnails=False) as client:
        client.teach("okapi")
        assert not client.http.get("/api/model").json()["thumbnails"]
        assert all(
            not one["thumbnails"] for one in client.http.get("/api/classes").json()["classes"]
        )
    assert not model.with_name("birds.fewmore.thumbnails").exists()


def test_everything_is_in_the_model_file_at_the_end(model: Path, inside: Inside):
    with inside(model) as client:
        client.teach("okapi")
    assert "okapi" in IncrementalClassifier.load(model).classes_
    with locked(model, 0):
        pass


def test_a_request_with_a_key_is_applied_once(client: Any, image: MakeImage):
    key = {"Idempotency-Key": "0f8fad5b"}
    first = client.teach("okapi", **key)
    again = client.teach("okapi", **key)
    assert again.json() == first.json()
    assert again.headers["idempotent-replay"] == "true"
    assert "idempotent-replay" not in first.headers
    problem(
        client.teach("okapi", image("okapi", 9), **key),
        422,
        "Idempotency-Key 0f8fad5b",
    )
    problem(client.teach("zebra", **key), 422, "came with another request")
    http = client.http
    for _ in range(2):
        undone = http.post("/api/sessions/undo", headers={"Idempotency-Key": "u"})
        assert undone.json()["version"] == 3
        forgotten = http.delete("/api/classes?name=jay", headers={"Idempotency-Key": "d"})
        assert forgotten.json()["version"] == 4
        renamed = http.patch(
            "/api/classes?name=wren", json={"name": "x"}, headers={"Idempotency-Key": "r"}
        )
        assert renamed.json()["version"] == 5
    assert client.version() == 5


def test_teachers_at_once_take_turns(client: Any):
    responses: list[Any] = []
    work = [
        (f"class {number % 6}", {"Idempotency-Key": str(number % 6)}) for number in range(12)
    ]  # each of them twice
    threads = [
        threading.Thread(target=lambda one=one: responses.append(client.teach(one[0], **one[1])))
        for one in work
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.status_code for one in responses] == [200] * 12
    assert sorted({one.json()["version"] for one in responses}) == list(range(2, 8))
    assert client.classes() == {"jay": 4, "robin": 5, "wren": 5, **{name: 3 for name, _ in work}}


def test_predictions_go_on_while_a_class_is_written(
    client: Any, image: MakeImage, monkeypatch: pytest.MonkeyPatch
):
    writing, go_on = threading.Event(), threading.Event()
    real = Database.append

    def slow(database: Database, *values: Any) -> None:
        writing.set()
        assert go_on.wait(20)
        real(database, *values)

    monkeypatch.setattr(Database, "append", slow)
    responses: list[Any] = []
    teacher = threading.Thread(target=lambda: responses.append(client.teach("okapi")))
    teacher.start()
    assert writing.wait(20)
    found = client.predict(image("okapi", 5)).json()
    assert found["version"] == 1
    assert all(one["name"] != "okapi" for one in found["predictions"][0]["classes"])
    go_on.set()
    teacher.join()
    assert responses[0].json()["version"] == 2
    assert (
        client.predict(image("okapi", 5)).json()["predictions"][0]["classes"][0]["name"] == "okapi"
    )


# Errors


def test_bad_images_are_refused(client: Any, image: MakeImage):
    problem(
        client.predict(b"no image"),
        422,
        "^image 1 cannot be read",
    )
    problem(
        client.predict(image("a"), b"", b"x"), 422, "^2 images cannot be used: image 2 .*; image 3 "
    )
    problem(
        client.teach("okapi", image("okapi"), b"x"),
        422,
        "^image 2 of okapi cannot be read",
    )
    problem(client.predict(image("a")[:-30]), 422, "image 1 cannot be read")
    assert client.classes() == {"jay": 4, "robin": 5, "wren": 5}
    assert client.version() == 1


def test_postscript_is_never_run(model: Path, inside: Inside, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    monkeypatch.setattr(
        "subprocess.check_call", lambda *_, **__: pytest.fail("a program was started")
    )
    with inside(model) as client:
        problem(
            client.predict(
                b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n"
            ),
            422,
            "cannot be read",
        )
    assert EpsImagePlugin.gs_binary == "gs"


def test_bad_names_are_refused(client: Any):
    problem(client.teach("   "), 422, "a class's name must not be empty")
    problem(client.teach("x" * 201), 422, "name: String should have at most 200 characters")
    problem(client.teach("a\x07b"), 422, "must hold no control characters")
    problem(client.teach("robin"), 409, "'robin' is the name of a class already")
    problem(client.teach("None of these"), 422, "no class can be named 'None of these'")
    problem(client.teach("robins", add=True), 404, "did you mean robin")
    problem(client.http.delete("/api/classes", params={"name": "robni"}), 404, "did you mean robin")
    problem(
        client.http.patch("/api/classes?name=robin", json={"name": "wren"}),
        409,
        "'wren' is the name of a class already",
    )
    problem(
        client.http.patch("/api/classes?name=nobody", json={"name": "x"}),
        404,
        "no class is named 'nobody'",
    )
    problem(
        client.http.patch("/api/classes?name=robin", json={"name": " none of these "}),
        422,
        "no class can be named 'none of these'",
    )
    problem(client.http.patch("/api/classes?name=robin", content=b"{"), 422, "not as it should be")
    form = {"content-type": "application/x-www-form-urlencoded"}  # curl's own, of -d
    untyped = client.http.patch("/api/classes?name=robin", content=b'{"name": "x"}', headers=form)
    problem(untyped, 422, "lacks the header Content-Type: application/json")
    problem(client.http.post("/api/classes", data={"name": "x"}), 422, "images: Field required")
    problem(client.http.get("/nowhere"), 404, "there is nothing here")
    problem(client.http.put("/api/classes"), 405, "cannot be done here")
    problem(
        client.http.post(
            "/api/predict",
            content=b"x",
            headers={"Content-Type": "multipart/form-data; boundary=y"},
        ),
        400,
        "multipart",
    )


def test_without_classes_nothing_is_predicted(client: Any, image: MakeImage):
    for name in ("jay", "robin", "wren"):
        client.http.delete("/api/classes", params={"name": name})
    problem(client.predict(image("a")), 409, "no class is known")
    assert client.teach("okapi").status_code == 200


def test_limits_are_enforced(model: Path, inside: Inside, image: MakeImage):
    limits = Limits(body_bytes=30_000, image_bytes=5000, pixels=10_000, images=3, classes=4)
    with inside(model, limits=limits) as client:
        problem(
            client.predict(b"x" * 6000), 413, "image 1 has 6,000 bytes, and at most 5,000 can be"
        )
        problem(client.predict(*[b"x" * 4900] * 7), 413, "the request has more than 30,000 bytes")
        problem(
            client.http.post("/api/predict", content=iter([b"x" * 20_000] * 2)),
            413,
            "more than 30,000 bytes",
        )
        problem(client.predict(*[image("a")] * 4), 422, "4 images were sent, and at most 3 can be")
        problem(client.predict(image("a", 0, 101)), 422, "it has more than 10,000 pixels")
        assert client.predict(image("a", 0, 99)).status_code == 200
        assert client.teach("okapi").status_code == 200
        problem(client.teach("zebra"), 409, "4 classes are known, and no more can be")
        assert client.http.get("/api/model").json()["limits"] == {
            "body_bytes": 30_000,
            "image_bytes": 5000,
            "pixels": 10_000,
            "images": 3,
            "classes": 4,
            "name_length": 200,
        }


def test_a_busy_service_says_when_to_retry(model: Path, inside: Inside, image: MakeImage):
    with inside(model, limits=Limits(images_waiting=2, changes_waiting=0)) as client:
        for response in (client.predict(*[image("a")] * 3), client.teach("okapi", image("a"))):
            problem(response, 503, "more is waiting than can be done soon")
            assert response.headers["retry-after"] == "1"
    with inside(model, limits=Limits(per_client=0)) as client:
        response = client.http.get("/api/model")
        problem(response, 429, "more than 0 requests of yours are under way")
        assert response.headers["retry-after"] == "1"
    with inside(model, limits=Limits(bytes_under_way=100)) as client:
        problem(client.predict(image("a")), 503, "too many images are being sent")


def test_a_full_disk_is_reported_and_nothing_changes(client: Any, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "append", full)
        problem(
            client.teach("okapi"),
            503,
            "No space left on device",
        )
    assert client.version() == 1
    assert client.teach("okapi").status_code == 200


def test_an_internal_error_reveals_no_details(
    client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(IncrementalClassifier, "info", lambda _: 1 / 0)
    response = client.http.get("/api/model")
    problem(response, 500, "its log says why")
    assert "division" not in response.text
    assert "division" in caplog.text
    assert response.headers["x-content-type-options"] == "nosniff"


# Access


def test_every_response_has_the_security_headers(client: Any):
    for path in ("/api/model", "/nowhere", "/health"):
        headers = client.http.get(path).headers
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self';"
        )
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["permissions-policy"] == "camera=(self)"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in headers)
        assert "server" not in headers


def test_other_sites_pages_cannot_use_it(client: Any):
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:9",
        "https://127.0.0.1.evil.example",
        "http://[",
    ):
        problem(client.teach("okapi", Origin=origin), 403, "another site")
    assert client.teach("okapi", Origin="http://127.0.0.1").status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[::1", "127.0.0.1@evil.example"):
        problem(client.http.get("/api/model", headers={"Host": host}), 400, "this service is not ")
    for host in ("localhost:8000", "127.0.0.1", "[::1]:80"):
        assert client.http.get("/api/model", headers={"Host": host}).status_code == 200
    embedded = {"Sec-Fetch-Site": "cross-site"}
    problem(client.http.get("/api/model/file", headers=embedded), 403, "another site")
    assert client.http.get("/", headers=embedded).status_code == 200  # a link to the page
    link = {**embedded, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.http.get("/api/model/file", headers=link).status_code == 200
    problem(client.teach("zebra", **link, Origin="http://evil.example"), 403, "another site")
    frame = {**link, "Sec-Fetch-Dest": "iframe"}
    problem(client.http.get("/api/model/file", headers=frame), 403, "another site")
    response = client.http.options(
        "/api/classes",
        headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert not any(name.startswith("access-control") for name in response.headers)


def test_changes_need_the_token(
    model: Path, inside: Inside, image: MakeImage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fewmore.service.guard.WRONG_TOKEN_SECONDS", 0)
    with inside(model, access=Access(TOKEN, public_reading=True)) as client:
        assert client.http.get("/api/model").json()["token"] == "changes"
        assert client.predict(image("a")).status_code == 200
        requests = [
            ("POST", "/api/classes"),
            ("POST", "/api/classes/images"),
            ("PATCH", "/api/classes?name=jay"),
        ]
        for method, path in (
            *requests,
            ("DELETE", "/api/classes?name=jay"),
            ("POST", "/api/sessions/undo"),
        ):
            response = client.http.request(method, path)
            problem(response, 401, "the token is missing")
            assert response.headers["www-authenticate"] == "Bearer"
            for wrong in (
                f"Bearer {TOKEN}x",
                "Bearer ",
                TOKEN,
                f"Basic {TOKEN}",
                "Bearer ä".encode("latin-1"),
            ):
                problem(
                    client.http.request(method, path, headers={"Authorization": wrong}),
                    401,
                    "the token is ",
                )
        assert client.teach("okapi", Authorization=f"Bearer {TOKEN}").status_code == 200


@pytest.mark.parametrize("public_reading", [False, True])
def test_the_openapi_document_says_what_needs_the_token(
    model: Path, inside: Inside, public_reading: bool
):
    limits = Limits(event_seconds=0)  # a stream of events has no end of its own
    with inside(model, access=Access(TOKEN, public_reading), limits=limits) as client:
        document = client.http.get(
            "/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}
        ).json()
        assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
        for path, methods in document["paths"].items():
            for method, described in methods.items():
                response = client.http.request(
                    method, path.replace("{thumbnail}", "0123456789abcdef")
                )
                assert ("security" in described) == (response.status_code == 401), (method, path)


def test_reading_needs_the_token_unless_it_is_public(model: Path, inside: Inside, image: MakeImage):
    with inside(model, access=Access(TOKEN)) as client:
        for path in (
            "/api/model",
            "/api/classes",
            "/api/thumbnails/0123456789abcdef",
            "/metrics",
            "/openapi.json",
            "/api/model/file",
        ):
            problem(client.http.get(path), 401, "token")
        problem(client.predict(image("a")), 401, "token")
        assert client.http.get("/health").status_code == 200
        assert client.http.get("/ready").status_code == 200
        assert (
            client.http.get("/api/model", headers={"Authorization": f"Bearer {TOKEN}"}).json()[
                "token"
            ]
            == "everything"
        )


def test_wrong_tokens_are_logged_and_slowed(
    model: Path, inside: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    with inside(model, access=Access(TOKEN)) as client:
        monkeypatch.setattr("fewmore.service.guard.asyncio.sleep", sleep)

        def ask(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            status: int = client.http.get("/api/model", headers=headers).status_code
            return status

        assert {ask(f"guess-{number}") for number in range(15)} == {401}
        assert waited.count(1.0) == 5
        assert caplog.text.count("a wrong token came from testclient") == 10
        assert "guess" not in caplog.text
        assert ask(TOKEN) == 200  # the right one does not wait, and counts from the beginning
        assert ask("guess") == 401
        assert waited.count(1.0) == 5
        monkeypatch.undo()


# Fairness


def test_pixels_of_a_request_are_limited(model: Path, inside: Inside, image: MakeImage):
    with inside(model, limits=Limits(request_pixels=100_000)) as client:
        large = image("a", 0, 250)
        assert client.predict(large).status_code == 200
        problem(
            client.predict(large, large), 422, "have 125,000 pixels in all, and at most 100,000"
        )
        problem(client.teach("okapi", large, large), 422, "send fewer or smaller ones")
    with inside(model, limits=Limits(pixels_waiting=100_000)) as client:
        problem(client.predict(large, large), 503, "more is waiting")
        assert client.predict(large).status_code == 200


def test_a_download_does_not_wait_for_changes_nor_they_for_it(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    writing, go_on = threading.Event(), threading.Event()
    saved: list[Path] = []
    real = IncrementalClassifier.save

    def slow(classifier: IncrementalClassifier, path: Path) -> None:
        saved.append(path)
        if path.name == "model.fewmore":
            writing.set()
            assert go_on.wait(20)
        real(classifier, path)

    monkeypatch.setattr(IncrementalClassifier, "save", slow)
    responses: list[Any] = []
    readers = [
        threading.Thread(target=lambda: responses.append(client.http.get("/api/model/file")))
        for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    assert writing.wait(20)
    assert client.teach("okapi").status_code == 200  # meanwhile
    go_on.set()
    for reader in readers:
        reader.join()
    assert [response.status_code for response in responses] == [200] * 3
    copies = {path for path in saved if path.name == "model.fewmore"}
    assert len(copies) <= 2  # of the version before, and after
    assert client.http.get("/api/model/file").status_code == 200
    assert sum(path.exists() for path in copies) <= 1  # what nobody needs is removed


def test_a_download_that_cannot_be_written_names_no_path(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    def full(_: IncrementalClassifier, path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(IncrementalClassifier, "save", full)
    response = client.http.get("/api/model/file")
    problem(response, 503, "no copy of the model can be written")
    assert "/tmp" not in response.text


# Operation


def read_metrics(text: str) -> dict[str, float]:
    """Return the value of each sample, read by Prometheus' own parser."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            labels = ",".join(f'{name}="{sample.labels[name]}"' for name in sorted(sample.labels))
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found, "twice"
            found[key] = sample.value
    return found


def test_health_readiness_and_metrics(
    client: Any, image: MakeImage, monkeypatch: pytest.MonkeyPatch
):
    assert client.http.get("/health").json() == {"status": "alive"}
    assert client.http.get("/ready").json() == {"status": "ready", "version": 1}
    client.predict(image("a"), image("b"))
    client.predict(b"x")
    client.http.get("/nowhere/x")
    client.http.request("MADEUP", "/health")
    response = client.http.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = response.text
    lines = read_metrics(text)
    assert lines['fewmore_requests_total{method="POST",route="/api/predict",status="200"}'] == 1
    assert lines['fewmore_requests_total{method="POST",route="/api/predict",status="422"}'] == 1
    count = 'fewmore_request_seconds_bucket{le="+Inf",method="POST",route="/api/predict"}'
    assert lines[count] == 2
    assert lines["fewmore_images_total"] == 2
    assert lines["fewmore_batch_seconds_count"] == lines["fewmore_batches_total"] > 0
    assert lines["fewmore_classes"] == 3
    assert lines["fewmore_store_failures_total"] == 0
    assert f'version="{__version__}"' in next(key for key in lines if "build_info" in key)
    assert "nowhere" not in text
    assert "MADEUP" not in text
    if sys.platform == "linux":
        assert lines["process_resident_memory_bytes"] > 1e6
    monkeypatch.setattr("fewmore.service.batching.Batcher.alive", False)
    response = client.http.get("/ready")
    problem(response, 503, "starting or ending")
    assert response.headers["retry-after"] == "1"


def test_metrics_lose_no_digits():
    metrics = Metrics()
    metrics.observe("GET", "/", 200, 1_234_567.0)
    values = [Value("images_total", "counter", "Images.", 12_345_678)]
    values.append(Value("ratio", "gauge", "A ratio.", 0.123456789))
    found = read_metrics(metrics.text(values).decode())
    assert found['fewmore_request_seconds_sum{method="GET",route="/"}'] == 1_234_567
    assert found["fewmore_images_total"] == 12_345_678
    assert found["fewmore_ratio"] == 0.123456789


def test_the_page_is_served(model: Path, inside: Inside, tmp_path: Path):
    page = tmp_path / "page"
    (page / "icons").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html><title>fewmore</title>")
    (page / "icons" / "a.svg").write_text("<svg/>")
    (tmp_path / "secret").write_text("secret")
    with inside(model, page=page) as client:
        response = client.http.get("/")
        assert response.headers["content-type"].startswith("text/html")
        assert response.headers["cache-control"] == "no-cache"
        assert client.http.get("/icons/a.svg").headers["content-type"].startswith("image/svg+xml")
        problem(client.http.get("/%2e%2e/secret"), 404, "nothing here")
        problem(client.http.get("/none.js"), 404, "nothing here")
        assert client.http.get("/api/model").status_code == 200


def test_the_openapi_document_has_examples(client: Any):
    document = client.http.get("/openapi.json").json()
    assert document["info"]["title"] == "fewmore"
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            assert described["description"], (method, path)
            assert described["tags"], (method, path)
            assert {"200", "500"} <= described["responses"].keys()
            for status, response in described["responses"].items():
                assert response["content"], (method, path, status)
                problem_type = "json" if path.startswith("/v2") else "problem+json"
                assert (int(status) < 400) or (
                    list(response["content"]) == [f"application/{problem_type}"]
                ), (method, path, status)
    for name in (
        "Predictions",
        "Classes",
        "Taught",
        "Changed",
        "NewName",
        "Sessions",
        "Undone",
        "Map",
        "Problem",
    ):
        assert document["components"]["schemas"][name]["example"], name
