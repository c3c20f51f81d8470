"""The service under load beside a bare loop over the same images, on the same cores, in one run.

    python benchmarks/serving.py [--clients 32] [--rounds 12] [--seconds 6] [--record results]

The backbone is mobilenet_v2 at 224 pixels, with 100 classes known. The bare loop decodes the same JPEG files and runs the backbone on
them in batches, in the quickest of some ways: one computation on all cores, or one on each core, in smaller or larger batches; it answers
nobody, and keeps its memory as the service does. The clients run on the same cores as the service, each asking for one image at a time;
what they cost is told. Lessons of five images come one after the other, from one more client.

A machine's speed drifts, so short rounds take turns: bare loop, service, bare loop, …, then service, service while teaching, service, …
Each round is compared with the mean of its two neighbours, and a ratio is the median over the rounds, all of which are recorded.
"""

import argparse
import asyncio
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from common import record, shown
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier.embedding import Embedder, square
from fewmore.nn.backbones import build
from fewmore.service.limits import cores
from fewmore.service.server import keep_memory

BACKBONE = "mobilenet_v2"
IMAGES = 64
CLASSES = 100
SHOTS = 5
BATCHES = (8, 16)  # of the bare loop
WARM_UP = 1.0  # seconds before a round of the service counts

Round = dict[str, float]


def photo(seed: int) -> bytes:
    """A JPEG file of 500 × 375 pixels, as busy as a photo."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
        (500, 375), Image.Resampling.BICUBIC
    )
    noisy = np.asarray(coarse, np.float32) + rng.normal(0, 10, (375, 500, 3))
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def classifier(images: Sequence[bytes]) -> IncrementalClassifier:
    """Random weights: what they are does not matter to speed."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pth"
        torch.save(build(BACKBONE).state_dict(), weights)
        made = IncrementalClassifier(BACKBONE, weights, device="cpu").fit(
            {"first": images[:3], "second": images[3:6]}
        )
    features = torch.rand(
        CLASSES - 2, SHOTS, made.embedder.dim, generator=torch.Generator().manual_seed(0)
    )
    made.learn_features({f"class {number}": rows for number, rows in enumerate(features)})
    return made


# The bare loop


def bare(
    embedder: Embedder, images: Sequence[bytes], seconds: float, threads: int, size: int
) -> float:
    """Images a second, in batches of this size; so many threads, each with its share of the cores."""
    torch.set_num_threads(max(1, cores() // threads))
    until = time.perf_counter() + seconds
    counts = [0] * threads

    def loop(own: int) -> None:
        torch.set_num_threads(max(1, cores() // threads))
        at = own
        while time.perf_counter() < until:
            batch = [images[(at + i) % len(images)] for i in range(size)]
            embedder.features(torch.stack([square(one, "", embedder.transform) for one in batch]))
            at += size
            counts[own] += size

    began = time.perf_counter()
    workers = [threading.Thread(target=loop, args=(own,)) for own in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


# The clients


def request(path: str, images: Sequence[bytes], name: str | None = None) -> bytes:
    """A whole request, ready to be sent."""
    parts = (
        [b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n' + name.encode() + b"\r\n"]
        if name
        else []
    )
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    body = b"".join([*parts, *(head + one + b"\r\n" for one in images), b"--x--\r\n"])
    fields = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(body)}\r\n\r\n"
    return fields.encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(body.decode())


async def load(
    port: int,
    requests: Sequence[bytes],
    clients: int,
    seconds: float,
    lessons: Callable[[], bytes] | None,
) -> Round:
    """Clients who ask again as soon as they are answered; how many answers in so many seconds, after warming up, and how late."""
    over = time.perf_counter() + WARM_UP + seconds
    late: list[float] = []
    taught = 0

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (now := time.perf_counter()) < over:
            await ask(reader, writer, requests[number % len(requests)])
            if over - seconds < (answered := time.perf_counter()) <= over:
                late.append(answered - now)
            number += 7
        writer.close()

    async def teacher() -> None:
        nonlocal taught
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while lessons and time.perf_counter() < over:
            await ask(reader, writer, lessons())
            taught += 1
        writer.close()

    cpu = time.process_time()
    await asyncio.gather(
        *(client(number) for number in range(clients)), *([teacher()] if lessons else [])
    )
    wall = WARM_UP + time.perf_counter() - over + seconds  # the last answers come later
    late.sort()
    found = {
        "images/s": len(late) / seconds,
        "p50, ms": 1e3 * late[len(late) // 2],
        "p99, ms": 1e3 * late[int(0.99 * (len(late) - 1))],
        "clients' cores": (time.process_time() - cpu) / wall,
        "lessons/s": taught / wall,
    }
    return {what: round(value, 4) for what, value in found.items()}


# Rounds


def turns(
    inner: Callable[[], Round], outer: Callable[[], Round], rounds: int
) -> tuple[list[Round], list[Round]]:
    """So many rounds of one thing, each between two of the other."""
    ones, others = [], [outer()]
    for number in range(rounds):
        ones.append(inner())
        others.append(outer())
        print(number, json.dumps([ones[-1], others[-1]]), flush=True)
    return ones, others


def ratio(ones: Sequence[Round], others: Sequence[Round], what: str) -> float:
    """How a round compares with the mean of its neighbours: the median."""
    return statistics.median(
        2 * one[what] / (a[what] + b[what])
        for one, a, b in zip(ones, others, others[1:], strict=False)
    )


def middle(rounds: Sequence[Round], what: str) -> float:
    return statistics.median(one[what] for one in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    keep_memory()
    images = [photo(seed) for seed in range(IMAGES)]
    made = classifier(images)
    lessons = (
        request("/api/classes", [images[(n + 13 * i) % IMAGES] for i in range(SHOTS)], f"new {n}")
        for n in range(10**6)
    )
    requests = [request("/api/predict?top=5", [one]) for one in images]
    ways = [(threads, size) for threads in sorted({1, cores()}) for size in BATCHES]
    speeds = {way: bare(made.embedder, images, args.seconds, *way) for way in ways}
    quickest = max(ways, key=speeds.__getitem__)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bench.fewmore"
        made.save(model)
        command = [
            sys.executable,
            "-m",
            "fewmore",
            "serve",
            str(model),
            "--port",
            "0",
            "--no-thumbnails",
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        try:
            line = process.stdout.readline() if process.stdout else ""
            port = int(line.rstrip("/\n").rsplit(":", 1)[1])

            def loop() -> Round:
                return {"images/s": round(bare(made.embedder, images, args.seconds, *quickest), 4)}

            def service() -> Round:
                return asyncio.run(load(port, requests, args.clients, args.seconds, None))

            def teaching() -> Round:
                return asyncio.run(
                    load(port, requests, args.clients, args.seconds, lambda: next(lessons))
                )

            plain, loops = turns(service, loop, args.rounds)
            taught, untaught = turns(teaching, service, args.rounds // 2)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    threads, size = quickest
    rows: list[dict[str, object]] = [
        {
            "what": f"bare loop, {threads} × batches of {size}, images/s",
            "value": middle(loops, "images/s"),
        },
        {"what": f"service, {args.clients} clients, images/s", "value": middle(plain, "images/s")},
        {"what": "service × bare loop", "value": ratio(plain, loops, "images/s"), "bar": 0.8},
        {"what": "clients' own time, cores", "value": middle(plain, "clients' cores")},
        {"what": "p50, ms", "value": middle(untaught, "p50, ms")},
        {"what": "p99, ms", "value": middle(untaught, "p99, ms")},
        {"what": "service while teaching, images/s", "value": middle(taught, "images/s")},
        {
            "what": f"lessons of {SHOTS} images meanwhile, a second",
            "value": middle(taught, "lessons/s"),
        },
        {"what": "p99 while teaching, ms", "value": middle(taught, "p99, ms")},
        {
            "what": "p99 while teaching × p99",
            "value": ratio(taught, untaught, "p99, ms"),
            "bar": 2.0,
        },
    ]
    for row in rows:
        shown(row)
    about: dict[str, object] = {
        "backbone": made.info()["backbone"],
        "image size": made.info()["image size"],
        "classes": CLASSES,
        "clients": args.clients,
        "cores": cores(),
        "bare loops tried, images/s": {
            f"{threads} × batches of {size}": round(speed, 2)
            for (threads, size), speed in speeds.items()
        },
        "rounds": {
            "bare loop": loops,
            "service": plain,
            "service around teaching": untaught,
            "service while teaching": taught,
        },
    }
    record("serving", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
