"""Test the service of a folder of models on Ray Serve, where it is installed.

Two replicas are asked for the same models at once, and killed after they acknowledged changes.
"""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fewmore.classifier.estimator import IncrementalClassifier

serve = pytest.importorskip("ray.serve", exc_type=ImportError)
ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

TOKEN = "a token that nobody guesses"
NAMES = ("beasts", "birds", "trees")


@pytest.fixture
def folder(small_model: Path, tmp_path: Path) -> Path:
    """Return a folder of three models."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(small_model, folder / f"{name}.fewmore")
    return folder


@pytest.fixture
def http(folder: Path) -> Iterator[Any]:
    """Deploy the folder with two replicas, and return a client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        from fewmore.service.ray_serve import Arguments, build

        serve.run(build(Arguments(models=str(folder), replicas=2, token=TOKEN)))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60
        ) as http:
            yield http
        serve.shutdown()
    finally:
        ray.shutdown()


def kill_replicas() -> None:
    """Kill all replicas that have models; Ray starts others."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if "#fewmore-models#" in actor["name"]:
            ray.kill(ray.get_actor(actor["name"], actor["namespace"]))


def test_a_model_has_one_writer_among_replicas(
    http: Any, folder: Path, image: Callable[..., bytes]
) -> None:
    refused = httpx2.get(f"{http.base_url}/api/models/birds", timeout=30)
    assert refused.status_code == 401
    listed = http.get("/api/models").json()["models"]
    assert tuple(one["name"] for one in listed) == NAMES
    images = [("images", (f"{n}.png", image("okapi", n), "image/png")) for n in range(3)]
    statuses: list[int] = []

    def teach(name: str, number: int) -> None:
        named = {"name": f"okapi {number}"}
        path = f"/api/models/{name}/classes"
        statuses.append(http.post(path, data=named, files=images).status_code)

    # The first requests for a model may reach both replicas at once.
    asking = [
        threading.Thread(target=teach, args=(name, number)) for name in NAMES for number in range(4)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert statuses == [200] * len(asking)
    for name in NAMES:
        predicted = http.post(f"/api/models/{name}/predict", files=images[:1])
        assert predicted.json()["predictions"][0]["classes"][0]["name"].startswith("okapi")
        with http.stream("GET", f"/api/models/{name}/events") as events:
            assert events.status_code == 200
            assert next(events.iter_lines())
    kill_replicas()
    until = time.monotonic() + 120
    for name in NAMES:
        while (answer := http.get(f"/api/models/{name}/classes")).status_code == 503:
            assert time.monotonic() < until
            time.sleep(1)
        classes = [known["name"] for known in answer.json()["classes"]]
        assert all(f"okapi {number}" in classes for number in range(4))
    serve.shutdown()  # changes go into the files, and locks are given back
    for name in NAMES:
        known = IncrementalClassifier.load(folder / f"{name}.fewmore")
        assert all(f"okapi {number}" in known for number in range(4))
