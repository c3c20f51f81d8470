"""The service under load beside a bare loop over the same pictures, on the same cores, in one run.

    python benchmarks/serving.py [--clients 32] [--rounds 3] [--seconds 20] [--record results]

The backbone is mobilenet_v2 at 224 pixels, with 100 classes known. The bare loop decodes the same JPEG files and runs the backbone on
them in batches, in the quicker of two ways: one computation on all cores, or one on each core; it answers nobody. The clients run on
the same cores as the service, each asking for one picture at a time; what they cost is told. Lessons of five pictures come one after
the other, from one more client. Rounds of all these take turns, and a ratio is that of the medians.
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
from common import record
from PIL import Image

from cecil import IncrementalClassifier
from cecil.embedding import Embedder, square
from cecil.service.limits import cores

PICTURES = 64
CLASSES = 100
SHOTS = 5
BATCH = 16  # of the bare loop


def photo(seed: int) -> bytes:
    """A JPEG file of 500 × 375 pixels, as busy as a photo."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
    noisy = np.asarray(coarse, np.float32) + rng.normal(0, 10, (375, 500, 3))
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


# The bare loop


def bare(embedder: Embedder, pictures: Sequence[bytes], seconds: float, threads: int) -> float:
    """Pictures a second; so many threads, each with its share of the cores."""
    torch.set_num_threads(max(1, cores() // threads))
    until = time.perf_counter() + seconds
    counts = [0] * threads

    def loop(own: int) -> None:
        torch.set_num_threads(max(1, cores() // threads))
        at = own
        while time.perf_counter() < until:
            batch = [pictures[(at + i) % len(pictures)] for i in range(BATCH)]
            embedder.features(torch.stack([square(one, "", embedder.transform) for one in batch]))
            at += BATCH
            counts[own] += BATCH

    began = time.perf_counter()
    workers = [threading.Thread(target=loop, args=(own,)) for own in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


# The clients


def request(path: str, pictures: Sequence[bytes], name: str | None = None) -> bytes:
    """A whole request, ready to be sent."""
    parts = [b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n' + name.encode() + b"\r\n"] if name else []
    head = b'--x\r\nContent-Disposition: form-data; name="pictures"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    body = b"".join([*parts, *(head + one + b"\r\n" for one in pictures), b"--x--\r\n"])
    fields = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return fields.encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(body.decode())


async def load(port: int, requests: Sequence[bytes], clients: int, seconds: float, lessons: Callable[[], bytes] | None) -> dict[str, float]:
    """Clients who ask again as soon as they are answered; how many answers in so many seconds, after two of warming up, and how late."""
    over = time.perf_counter() + 2 + seconds
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
    await asyncio.gather(*(client(number) for number in range(clients)), *([teacher()] if lessons else []))
    wall = 2 + time.perf_counter() - over + seconds  # the last answers come later
    late.sort()
    return {
        "throughput": len(late) / seconds,
        "p50": late[len(late) // 2],
        "p99": late[int(0.99 * (len(late) - 1))],
        "clients' share of a core": (time.process_time() - cpu) / wall,
        "lessons": taught / wall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    pictures = [photo(seed) for seed in range(PICTURES)]
    made = IncrementalClassifier(device="cpu").fit({"first": pictures[:3], "second": pictures[3:6]})
    features = torch.rand(CLASSES - 2, SHOTS, made.embedder.dim, generator=torch.Generator().manual_seed(0))
    made.learn_features({f"class {number}": rows for number, rows in enumerate(features)})
    lessons = (request("/api/classes", [photo(10_000 + 10 * n + i) for i in range(SHOTS)], f"new {n}") for n in range(10**6))
    rows: list[dict[str, object]] = []
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bench.cecil"
        made.save(model)
        command = [sys.executable, "-m", "cecil", "serve", str(model), "--port", "0", "--no-thumbnails"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            line = process.stdout.readline() if process.stdout else ""
            port = int(line.rstrip("/\n").rsplit(":", 1)[1])
            requests = [request("/api/predict?top=5", [one]) for one in pictures]
            for _ in range(args.rounds):
                loops = {
                    "bare, one computation": bare(made.embedder, pictures, args.seconds / 2, 1),
                    "bare, one a core": bare(made.embedder, pictures, args.seconds / 2, cores()),
                }
                plain = asyncio.run(load(port, requests, args.clients, args.seconds, None))
                taught = asyncio.run(load(port, requests, args.clients, args.seconds, lambda: next(lessons)))
                measured = {**loops, **plain, **{f"{name}, teaching": value for name, value in taught.items()}}
                print(json.dumps({name: round(value, 3) for name, value in measured.items()}), flush=True)
                for name, value in measured.items():
                    found.setdefault(name, []).append(value)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    middle = {name: statistics.median(values) for name, values in found.items()}
    loop = max(middle["bare, one computation"], middle["bare, one a core"])
    rows += [
        {"what": "bare loop, one computation on all cores, pictures/s", "value": middle["bare, one computation"]},
        {"what": "bare loop, one computation a core, pictures/s", "value": middle["bare, one a core"]},
        {"what": f"service, {args.clients} clients, pictures/s", "value": middle["throughput"]},
        {"what": "service × bare loop", "value": middle["throughput"] / loop, "bar": 0.8},
        {"what": "clients' own time, cores", "value": middle["clients' share of a core"]},
        {"what": "p50, ms", "value": 1e3 * middle["p50"]},
        {"what": "p99, ms", "value": 1e3 * middle["p99"]},
        {"what": "service while teaching, pictures/s", "value": middle["throughput, teaching"]},
        {"what": f"lessons of {SHOTS} pictures meanwhile, a second", "value": middle["lessons, teaching"]},
        {"what": "p99 while teaching, ms", "value": 1e3 * middle["p99, teaching"]},
        {"what": "p99 while teaching × p99", "value": middle["p99, teaching"] / middle["p99"], "bar": 2.0},
    ]
    for row in rows:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    about: dict[str, object] = {
        "backbone": "mobilenet_v2",
        "classes": CLASSES,
        "clients": args.clients,
        "cores": cores(),
        "rounds": args.rounds,
    }
    record("serving", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
