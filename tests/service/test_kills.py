"""Kill the service at random moments, while classes are taught and images predicted.

A change that was acknowledged must be there afterwards. Another must be there whole or not at all;
sent again with the same key, it must be there once.
"""

import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest

Serving = Callable[..., AbstractContextManager[Any]]
MakeImage = Callable[..., bytes]
SHOTS = 3
PATIENCE = 30  # seconds


def teach(url: str, name: str, images: list[bytes]) -> int:
    files = [("images", ("a.png", one, "image/png")) for one in images]
    try:
        with httpx2.Client(base_url=url, timeout=PATIENCE) as http:
            return http.post(
                "/api/classes", data={"name": name}, files=files, headers={"Idempotency-Key": name}
            ).status_code
    except httpx2.HTTPError:
        return 0


def load(
    url: str, number: int, image: MakeImage, seconds: float, kill: Callable[[], None]
) -> tuple[set[str], set[str]]:
    """Let three threads teach and two predict until the process is killed.

    Returns the names of the classes that were tried, and of those that were acknowledged.
    """
    tried: set[str] = set()
    acknowledged: set[str] = set()
    over = threading.Event()

    def teacher(who: int) -> None:
        for lesson in range(10_000):
            if over.is_set():
                return
            name = f"class-{number}-{who}-{lesson}"
            tried.add(name)
            if teach(url, name, [image(name, shot) for shot in range(SHOTS)]) == 200:
                acknowledged.add(name)

    def predict() -> None:
        while not over.is_set():
            try:
                with httpx2.Client(base_url=url, timeout=PATIENCE) as http:
                    for _ in range(20):
                        response = http.post(
                            "/api/predict",
                            files=[("images", ("a.png", image("robin", 1), "image/png"))],
                        )
                        assert response.status_code == 200
            except httpx2.HTTPError:
                time.sleep(0.01)

    threads = [threading.Thread(target=teacher, args=(who,)) for who in range(3)] + [
        threading.Thread(target=predict) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    kill()
    over.set()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    return tried, acknowledged


def survive(model: Path, kills: int, serving: Serving, image: MakeImage, seed: int) -> int:
    """Kill the service repeatedly on one model file; return how many classes were acknowledged."""
    rng = random.Random(seed)
    counts = {"jay": 4, "robin": 5, "wren": 5}
    promised: set[str] = set()
    open_: set[str] = set()  # tried and not acknowledged
    for number in range(kills + 1):
        with serving(model) as one, httpx2.Client(base_url=one.url, timeout=PATIENCE) as http:
            found = {
                row["name"]: row["images"]
                for row in http.get("/api/classes", params={"limit": 10_000}).json()["classes"]
            }
            assert promised <= found.keys(), f"lost: {sorted(promised - found.keys())}"
            assert found.keys() <= promised | open_ | counts.keys()
            assert all(count == counts.get(name, SHOTS) for name, count in found.items()), (
                "half-taught"
            )
            sessions = http.get("/api/sessions").json()["sessions"]
            assert sorted(row["classes"][0] for row in sessions[1:]) == sorted(
                found.keys() - counts.keys()
            ), "doubled"
            for name in sorted(open_)[:3]:  # what was not acknowledged is sent again
                assert teach(one.url, name, [image(name, shot) for shot in range(SHOTS)]) == 200
                promised.add(name)
            open_ -= promised
            if number == kills:
                one.stop()
                break
            tried, acknowledged = load(one.url, number, image, rng.uniform(0.0, 0.6), one.kill)
            promised |= acknowledged
            open_ |= tried - acknowledged
    return len(promised)


def test_a_few_kills(model: Path, serving: Serving, image: MakeImage):
    assert survive(model, 3, serving, image, seed=1) > 0


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_kills(model: Path, serving: Serving, image: MakeImage, part: int):
    kept = survive(model, 25, serving, image, seed=10 + part)
    print(f"25 kills: {kept} acknowledged classes, none lost, half-taught or doubled")
    assert kept > 100  # there was something to lose
