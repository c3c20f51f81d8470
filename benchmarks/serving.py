"""Measure the service under load beside a bare loop over the same images, on the same cores.

    python benchmarks/serving.py [--clients 32] [--rounds 12] [--seconds 6] [--record results]

The backbone is mobilenet_v2 at 224 pixels, with 100 known classes. The bare loop decodes the same
JPEG files and runs the backbone on them in batches, in the fastest of several configurations: one
computation on all cores, or one on each core, in smaller or larger batches. It sends no responses,
and keeps its memory as the service does. The clients run on the same cores as the service, each
with one image per request; their own CPU time is reported. Another client teaches classes of five
images, one after the other.

A machine's speed drifts, so short rounds alternate: bare loop, service, bare loop, …, then service,
service while teaching, service, … Each round is compared with the mean of its two neighbours. A
ratio is the median over the rounds, all of which are recorded.
"""

import asyncio
import io
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from common import Row, alternate, make_parser, median_ratio, print_row, record
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier.embedding import Embedder, center_square
from fewmore.nn.backbones import build
from fewmore.service.limits import cores
from fewmore.service.server import keep_memory

BACKBONE = "mobilenet_v2"
IMAGES = 64
CLASSES = 100
SHOTS = 5
BATCH_SIZES = (8, 16)  # of the bare loop
WARM_UP = 1.0  # seconds before a round of the service counts

Round = dict[str, float]


def photo(seed: int) -> bytes:
    """Return a JPEG file of 500 × 375 pixels with as much detail as a photo."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
        (500, 375), Image.Resampling.BICUBIC
    )
    noisy = np.asarray(coarse, np.float32) + rng.normal(0, 10, (375, 500, 3))
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def build_classifier(images: Sequence[bytes]) -> IncrementalClassifier:
    """Return a classifier with random weights, which are as fast as trained ones."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pth"
        torch.save(build(BACKBONE).state_dict(), weights)
        classifier = IncrementalClassifier(BACKBONE, weights, device="cpu")
        classifier.fit({"first": images[:3], "second": images[3:6]})
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(CLASSES - 2, SHOTS, classifier.embedder.dim, generator=generator)
    classifier.learn_features({f"class {i}": shots for i, shots in enumerate(features)})
    return classifier


# The bare loop


def run_bare_loop(
    embedder: Embedder, images: Sequence[bytes], seconds: float, threads: int, size: int
) -> float:
    """Return images per second in batches of `size`, on threads that share the cores."""
    torch.set_num_threads(max(1, cores() // threads))
    end = time.perf_counter() + seconds
    counts = [0] * threads

    def loop(thread: int) -> None:
        torch.set_num_threads(max(1, cores() // threads))
        position = thread
        while time.perf_counter() < end:
            batch = [images[(position + i) % len(images)] for i in range(size)]
            pixels = [center_square(image, "", embedder.transform) for image in batch]
            embedder.features(torch.stack(pixels))
            position += size
            counts[thread] += size

    began = time.perf_counter()
    workers = [threading.Thread(target=loop, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


# The clients


def make_request(path: str, images: Sequence[bytes], name: str | None = None) -> bytes:
    """Return the bytes of a whole multipart request."""
    parts = []
    if name:
        head = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n'
        parts.append(head + name.encode() + b"\r\n")
    head = (
        b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n'
        b"Content-Type: image/jpeg\r\n\r\n"
    )
    parts += [head + image + b"\r\n" for image in images]
    body = b"".join(parts) + b"--x--\r\n"
    fields = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return fields.encode() + body


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send a request and read its response."""
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(body.decode())


async def put_under_load(
    port: int,
    requests: Sequence[bytes],
    clients: int,
    seconds: float,
    next_lesson: Callable[[], bytes] | None,
) -> Round:
    """Measure throughput and latency of clients that send again as soon as they have a response."""
    end = time.perf_counter() + WARM_UP + seconds
    latencies: list[float] = []
    lessons = 0

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (sent := time.perf_counter()) < end:
            await send(reader, writer, requests[number % len(requests)])
            if end - seconds < (received := time.perf_counter()) <= end:
                latencies.append(received - sent)
            number += 7
        writer.close()

    async def teacher() -> None:
        nonlocal lessons
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while next_lesson and time.perf_counter() < end:
            await send(reader, writer, next_lesson())
            lessons += 1
        writer.close()

    cpu = time.process_time()
    tasks = [client(number) for number in range(clients)]
    if next_lesson:
        tasks.append(teacher())
    await asyncio.gather(*tasks)
    wall = WARM_UP + time.perf_counter() - end + seconds  # the last responses come later
    latencies.sort()
    measured = {
        "images/s": len(latencies) / seconds,
        "p50, ms": 1e3 * latencies[len(latencies) // 2],
        "p99, ms": 1e3 * latencies[int(0.99 * (len(latencies) - 1))],
        "clients' cores": (time.process_time() - cpu) / wall,
        "lessons/s": lessons / wall,
    }
    return {name: round(value, 4) for name, value in measured.items()}


@contextmanager
def running_service(classifier: IncrementalClassifier) -> Iterator[int]:
    """Serve a classifier in another process; yield its port."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bench.fewmore"
        classifier.save(model)
        command = [sys.executable, "-m", "fewmore", "serve", str(model)]
        command += ["--port", "0", "--no-thumbnails"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield int(line.rstrip("/\n").rsplit(":", 1)[1])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


# Rounds


def ratio(inner: Sequence[Round], outer: Sequence[Round], name: str) -> float:
    """Return the median ratio of a value of rounds that alternate."""
    return median_ratio([one[name] for one in inner], [one[name] for one in outer])


def median(rounds: Sequence[Round], name: str) -> float:
    """Return the median over rounds."""
    return statistics.median(round_[name] for round_ in rounds)


def main() -> None:
    """Measure the bare loop, the service, and the service while teaching."""
    parser = make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=6)
    args = parser.parse_args()
    keep_memory()
    images = [photo(seed) for seed in range(IMAGES)]
    classifier = build_classifier(images)
    lessons = (
        make_request(
            "/api/classes", [images[(n + 13 * i) % IMAGES] for i in range(SHOTS)], f"new {n}"
        )
        for n in range(10**6)
    )
    requests = [make_request("/api/predict?top=5", [image]) for image in images]

    def bare_speed(threads: int, size: int) -> float:
        return run_bare_loop(classifier.embedder, images, args.seconds, threads, size)

    configurations = [(threads, size) for threads in sorted({1, cores()}) for size in BATCH_SIZES]
    speeds = {configuration: bare_speed(*configuration) for configuration in configurations}
    fastest = max(configurations, key=speeds.__getitem__)
    with running_service(classifier) as port:

        def bare_loop() -> Round:
            return {"images/s": round(bare_speed(*fastest), 4)}

        def service() -> Round:
            load = put_under_load(port, requests, args.clients, args.seconds, None)
            return asyncio.run(load)

        def teaching() -> Round:
            load = put_under_load(port, requests, args.clients, args.seconds, lambda: next(lessons))
            return asyncio.run(load)

        plain, loops = alternate(service, bare_loop, args.rounds)
        taught, untaught = alternate(teaching, service, args.rounds // 2)
    threads, size = fastest
    values: list[tuple[str, float, float | None]] = [  # what, value, bar
        (
            f"bare loop, {threads} × batches of {size}, images/s",
            median(loops, "images/s"),
            None,
        ),
        (f"service, {args.clients} clients, images/s", median(plain, "images/s"), None),
        ("service × bare loop", ratio(plain, loops, "images/s"), 0.9),
        ("clients' own time, cores", median(plain, "clients' cores"), None),
        ("p50, ms", median(untaught, "p50, ms"), None),
        ("p99, ms", median(untaught, "p99, ms"), None),
        ("service while teaching, images/s", median(taught, "images/s"), None),
        (f"lessons of {SHOTS} images meanwhile, a second", median(taught, "lessons/s"), None),
        ("p99 while teaching, ms", median(taught, "p99, ms"), None),
        ("p99 while teaching × p99", ratio(taught, untaught, "p99, ms"), 2.0),
    ]
    rows = [
        print_row({"what": what, "value": value, **({} if bar is None else {"bar": bar})})
        for what, value, bar in values
    ]
    info = classifier.info()
    about: Row = {
        "backbone": info["backbone"],
        "image size": info["image size"],
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
