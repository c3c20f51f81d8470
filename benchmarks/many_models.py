"""Measure what a further model costs behind one address: memory, first and later responses.

    python benchmarks/many_models.py [--models 50] [--record results]

The models are files of one classifier, mobilenet_v2 at 224 pixels with 100 classes, so that they
have the same backbone. `fewmore serve --models` is asked for a prediction by each of them in turn,
twice: the first time it loads the model. Its memory is read after each model.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import torch
from common import Row, make_parser, print_row, record
from serving import build_classifier, photo

IMAGES = 8


def memory_mb(process: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def ask(http: httpx2.Client, name: str, image: bytes) -> float:
    """Return the seconds of a prediction."""
    began = time.perf_counter()
    files = {"images": ("photo.jpg", image, "image/jpeg")}
    http.post(f"/api/models/{name}/predict", files=files).raise_for_status()
    return time.perf_counter() - began


def measure(folder: Path, names: list[str], images: list[bytes]) -> Row:
    """Serve a folder, ask each model twice, and return memory and seconds."""
    command = [sys.executable, "-m", "fewmore", "serve", "--models", str(folder), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with httpx2.Client(base_url=url, timeout=120) as http:
            empty = memory_mb(process.pid)
            first, memory = [], []
            for number, name in enumerate(names):
                first.append(ask(http, name, images[number % IMAGES]))
                memory.append(memory_mb(process.pid))
            later = [ask(http, name, images[n % IMAGES]) for n, name in enumerate(names)]
            loaded = http.get("/metrics").text
    finally:
        process.terminate()
        process.wait(60)
    assert f"fewmore_models_loaded {float(len(names))}" in loaded
    return {
        "models": len(names),
        "memory without a model, MB": empty,
        "memory with one model, MB": memory[0],
        "memory with all models, MB": memory[-1],
        "memory a further model, MB": (memory[-1] - memory[0]) / (len(names) - 1),
        "first response of the first model, s": first[0],
        "first response of a further model, s": statistics.median(first[1:]),
        "later response, s": statistics.median(later),
    }


def main() -> None:
    """Make the model files, and measure."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", type=int, default=50)
    args = parser.parse_args()
    images = [photo(seed) for seed in range(IMAGES)]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        names = [f"model{number:03}" for number in range(args.models)]
        build_classifier(images).save(folder / f"{names[0]}.fewmore")
        for name in names[1:]:
            shutil.copy(folder / f"{names[0]}.fewmore", folder / f"{name}.fewmore")
        size = (folder / f"{names[0]}.fewmore").stat().st_size / 2**20
        row = print_row(measure(folder, names, images))
    record("many_models", torch.device("cpu"), [row], {"model file, MB": size}, args.record)


if __name__ == "__main__":
    main()
