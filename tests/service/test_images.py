"""Test that single images of a class can be listed and removed, and that features of them last."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from fewmore import IncrementalClassifier
from fewmore.classifier.embedding import center_square, image_hash
from fewmore.errors import StateError
from fewmore.service import store as stores
from fewmore.service.store import Store
from fewmore.service.thumbnails import thumbnail_name

Inside = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def without_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep changes out of the model file until the service ends, however long a test takes."""
    monkeypatch.setattr(stores, "MERGE_SECONDS", 3600.0)


def images_of(client: Any, name: str) -> Any:
    response = client.http.get("/api/classes/images", params={"name": name})
    assert response.status_code == 200, response.text
    return response.json()


def remove(client: Any, name: str, image: str, **headers: str) -> Any:
    query = {"name": name, "image": image}
    return client.http.request("DELETE", "/api/classes/images", params=query, headers=headers)


def id_of(classifier: IncrementalClassifier, image: bytes) -> str:
    return thumbnail_name(image_hash(center_square(image, "", classifier.embedder.transform)))


def test_a_removed_image_is_as_if_it_had_never_been_taught(
    model: Path, inside: Inside, image: Callable[..., bytes]
) -> None:
    with inside(model) as client:
        good = [image("okapi", number) for number in range(4)]
        bad = image("zebra", 7)
        client.teach("okapi", *good, bad)
        listed = images_of(client, "okapi")
        assert (listed["images"], listed["total"]) == (5, 5)
        assert all(one["removable"] and one["thumbnail"] for one in listed["listed"])
        classifier = IncrementalClassifier.load(model)
        wrong = id_of(classifier, bad)
        assert remove(client, "okapi", wrong).json() == {
            "version": 3,
            "name": "okapi",
            "images": 4,
        }
        assert wrong not in [one["id"] for one in images_of(client, "okapi")["listed"]]
        last = client.http.get("/api/sessions").json()["sessions"][-1]
        assert (last["kind"], last["text"]) == ("remove", "removal of 1 image of okapi")
    classifier.learn({"okapi": good})
    expected, found = (
        next(known for known in one.model.class_set.classes if known.name == "okapi")
        for one in (classifier, IncrementalClassifier.load(model))
    )
    assert found.hashes == expected.hashes
    assert torch.allclose(found.feature_sum, expected.feature_sum, atol=1e-6)


def test_removing_survives_a_restart_and_is_undone(model: Path, inside: Inside) -> None:
    with inside(model) as client:
        client.teach("okapi")
    with inside(model) as client:  # the database has dropped the lesson, and kept its features
        first, second, third = (one["id"] for one in images_of(client, "okapi")["listed"])
        assert remove(client, "okapi", first, **{"Idempotency-Key": "one"}).status_code == 200
        replayed = remove(client, "okapi", first, **{"Idempotency-Key": "one"})
        assert replayed.headers["Idempotent-Replay"] == "true"
        assert remove(client, "okapi", first).status_code == 404
        stale = remove(client, "okapi", second, **{"If-Match": '"2"'})
        assert stale.status_code == 412
        client.http.post("/api/sessions/undo")
    with inside(model) as client:
        assert {one["id"] for one in images_of(client, "okapi")["listed"]} == {
            first,
            second,
            third,
        }
        for one in (first, second):
            assert remove(client, "okapi", one).status_code == 200
        left = images_of(client, "okapi")["listed"]
        assert [(one["id"], one["removable"]) for one in left] == [(third, False)]
        refused = remove(client, "okapi", third)
        assert refused.status_code == 409
        assert "forget the class instead" in refused.json()["detail"]


def test_a_crash_between_removing_and_merging_loses_nothing(model: Path, inside: Inside) -> None:
    with inside(model) as client:
        client.teach("okapi")
        name = images_of(client, "okapi")["listed"][0]["id"]
        assert remove(client, "okapi", name).status_code == 200
        before = (model.read_bytes(), Path(f"{model}.changes").read_bytes())
        log = Path(f"{model}.changes-wal").read_bytes()
    model.write_bytes(before[0])  # as a kill would have left them
    Path(f"{model}.changes").write_bytes(before[1])
    Path(f"{model}.changes-wal").write_bytes(log)
    store = Store(model)
    okapi = store.current.model.class_set.classes[-1]
    assert (okapi.name, okapi.count) == ("okapi", 2)
    store.close()


def test_images_that_were_trained_on_cannot_be_removed_alone(client: Any) -> None:
    listed = images_of(client, "jay")
    assert listed["images"] == 4
    assert not any(one["removable"] for one in listed["listed"])
    refused = remove(client, "jay", listed["listed"][0]["id"])
    assert refused.status_code == 409
    assert "was not taught through the service" in refused.json()["detail"]
    assert remove(client, "okapi", "0" * 16).status_code == 404
    assert client.http.get("/api/classes/images", params={"name": "x"}).status_code == 404


def test_features_of_forgotten_images_are_dropped_when_no_undo_needs_them(
    model: Path, inside: Inside
) -> None:
    with inside(model) as client:
        client.teach("okapi")
    with inside(model) as client:
        client.http.delete("/api/classes", params={"name": "okapi"})
        for number in range(20):
            client.http.patch(
                "/api/classes",
                params={"name": f"jay{number or ''}"},
                json={"name": f"jay{number + 1}"},
            )
    store = Store(model)
    assert store._database is not None
    stored = store._database._connection.execute("SELECT count(*) FROM images").fetchone()
    store.close()
    assert stored == (0,)


def test_a_database_without_features_is_opened(model: Path, inside: Inside) -> None:
    with inside(model) as client:
        client.teach("okapi")
    store = Store(model)
    assert store._database is not None
    store._database._connection.executescript("DROP TABLE images; PRAGMA user_version=1")
    store.close()
    with inside(model) as client:
        assert not any(one["removable"] for one in images_of(client, "okapi")["listed"])
        client.teach("zebra")
        assert all(one["removable"] for one in images_of(client, "zebra")["listed"])


def test_the_library_removes_images_by_their_files(
    small_model: Path, photos: Callable[..., Path]
) -> None:
    folder = photos("more", {"okapi": 4}) / "okapi"
    paths = sorted(folder.glob("*.png"))
    classifier = IncrementalClassifier.load(small_model)
    classifier.learn({"okapi": paths})
    classifier.remove_images("okapi", paths[:2])
    other = IncrementalClassifier.load(small_model)
    other.learn({"okapi": paths[2:]})
    one, two = (each.model.class_set.classes[-1] for each in (classifier, other))
    assert (one.count, one.hashes) == (two.count, two.hashes)
    assert torch.allclose(one.feature_sum, two.feature_sum, atol=1e-6)
    with pytest.raises(StateError, match="are none of 'okapi'"):
        classifier.remove_images("okapi", paths[:1])
    with pytest.raises(StateError, match="forget the class instead"):
        classifier.remove_images("okapi", paths[2:])
    assert "removal of 2 images of okapi" in classifier.undo()
    assert classifier.model.class_set.classes[-1].count == 4


def test_the_history_comes_in_pages(client: Any) -> None:
    for number in range(4):
        client.teach(f"class {number}")
    latest = client.http.get("/api/sessions", params={"limit": 2}).json()
    assert latest["total"] == 5
    assert [one["number"] for one in latest["sessions"]] == [3, 4]
    earlier = client.http.get("/api/sessions", params={"before": 3, "limit": 100}).json()
    assert [one["number"] for one in earlier["sessions"]] == [0, 1, 2]
    assert client.http.get("/api/sessions", params={"limit": 0}).status_code == 422


def test_the_model_is_exported_to_onnx(client: Any, image: Callable[..., bytes]) -> None:
    import io

    import numpy as np
    import onnxruntime
    from PIL import Image

    client.teach("okapi")
    response = client.http.get("/api/model/onnx")
    assert response.status_code == 200, response.text
    assert 'filename="birds.onnx"' in response.headers["Content-Disposition"]
    session = onnxruntime.InferenceSession(response.content)
    pixels = np.asarray(Image.open(io.BytesIO(image("okapi", 9))).convert("RGB"))
    (label,) = session.run(["label"], {"image": pixels})
    assert label.item() == "okapi"
