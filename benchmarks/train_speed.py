"""Measure `train` on 600 photos of 500 pixels beside embedding the same photos.

    python benchmarks/train_speed.py [--data-root DATA] [--threads 2] [--rounds 5]
        [--record results]

The photos are made here: random ones with the frequencies and the colors of photos, and something
that the photos of a class have in common. The backbone is mobilenet_v2. Embedding decodes the
photos and computes their features, by the engine that `train` uses too. Rounds alternate, and each
is compared with the mean of its two neighbours. A ratio is the median over the rounds. No features
are in the cache folder when a round begins. Processor time is that of all threads.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import Row, alternate, median_ratio, parse_photos, print_row, record
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.data.threads import threaded_map

CLASSES, PHOTOS = 20, 30
WIDTH, HEIGHT = 500, 375
QUALITY = 90  # of JPEG
COMMON = 0.5  # share of a class in its photos
FALL = 1.2  # power of the frequency that amplitudes are divided by
BAR = 1.3


def make_photos(folder: Path) -> None:
    """Write photos, one folder a class."""
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.fftfreq(WIDTH)[None])
    frequency[0, 0] = 1 / WIDTH

    def draw(rng: np.random.Generator) -> np.ndarray:
        noise = np.fft.fft2(rng.normal(size=(3, HEIGHT, WIDTH)))
        maps = np.real(np.fft.ifft2(noise / frequency**FALL))
        return (maps - maps.mean((1, 2), keepdims=True)) / maps.std((1, 2), keepdims=True)

    def make_class(label: int) -> None:
        rng = np.random.default_rng(label)
        of_class = draw(rng)
        place = folder / f"class {label:02}"
        place.mkdir(parents=True)
        for number in range(PHOTOS):
            maps = COMMON * of_class + (1 - COMMON) * draw(rng)
            gray = maps.mean(0, keepdims=True)
            pixels = (128 + 50 * (gray + 0.4 * (maps - gray))).clip(0, 255).astype(np.uint8)
            image = Image.fromarray(pixels.transpose(1, 2, 0))
            image.save(place / f"{number:02}.jpg", quality=QUALITY)

    for _ in threaded_map(make_class, range(CLASSES)):
        pass


def timed(call: Callable[[], object]) -> Callable[[], tuple[float, float]]:
    """Return a call that returns its seconds and its seconds of processor time."""

    def measure() -> tuple[float, float]:
        began = time.perf_counter(), time.process_time()
        call()
        return time.perf_counter() - began[0], time.process_time() - began[1]

    return measure


def main() -> None:
    """Train and embed in turn."""
    _, args = parse_photos(__doc__, rounds=5)
    with tempfile.TemporaryDirectory(dir=args.work) as temporary:
        photos = Path(temporary) / "photos"
        make_photos(photos)
        paths = sorted(map(str, photos.glob("*/*.jpg")))
        # The engine's graph is in the cache folder already, as it is from the second training on.
        os.environ["FEWMORE_CACHE"] = temporary
        embedder = IncrementalClassifier().build_embedder()
        embedder.embed(paths[:16], paths[:16])

        def train() -> None:
            for file in Path(temporary, "features").glob("*/*"):
                file.unlink()
            IncrementalClassifier().fit(photos)

        trained, embedded = alternate(
            timed(train), timed(lambda: embedder.embed(paths, paths)), args.rounds
        )
    rows: list[Row] = []
    for place, what in enumerate(("seconds", "seconds of processor time")):
        inner = [round_[place] for round_ in trained]
        outer = [round_[place] for round_ in embedded]
        rows += [
            {"what": f"train, {what}", "value": statistics.median(inner)},
            {"what": f"embedding, {what}", "value": statistics.median(outer)},
            {"what": f"train × embedding, {what}", "value": median_ratio(inner, outer)},
        ]
        rows[-1] |= {"bar": BAR} if place == 0 else {}
    for row in rows:
        print_row(row)
    about: Row = {
        "backbone": "mobilenet_v2",
        "engine": embedder.engine.name,
        "photos": f"{CLASSES} × {PHOTOS} of {WIDTH} × {HEIGHT} pixels",
        "threads": torch.get_num_threads(),
    }
    record("train_speed", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
