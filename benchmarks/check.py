"""Measure what `fewmore check` finds of errors that were planted into bird photos.

    python benchmarks/check.py [--data-root DATA] [--record results]

20 photos of 1,000 are moved into a wrong class, and 10 copies are added: in the same class and in
another one, as they are, re-saved as JPEG of low quality or as PNG, and shrunk. The first row is
the command on such a folder. The others are its functions on photos of other classes, measured
once and labelled anew for each seed.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from common import Row, parse_photos, print_row, record
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier.checking.findings import CheckResult
from fewmore.classifier.checking.folder import check_measured
from fewmore.classifier.checking.measure import Measured, measure
from fewmore.classifier.inputs import collect_images

PHOTOS = 1000
SWAPPED = 20
COPIES = 10
SHAPES = ((20, 50), (40, 25), (100, 10))  # classes, photos a class
SEEDS = 5
MOST_FALSE = 20
LEAST_SWAPPED = 15

Listing = dict[str, list[Path]]  # by class


def draw_photos(root: Path, classes: int, count: int, seed: int) -> Listing:
    """Draw classes that have enough photos, and photos of them."""
    generator = random.Random(seed)
    folders = sorted((root / "CUB_200_2011" / "images").iterdir())
    listing = {folder.name: sorted(folder.glob("*.jpg")) for folder in folders if folder.is_dir()}
    large = [name for name, paths in listing.items() if len(paths) >= count]
    names = sorted(generator.sample(large, classes))
    return {name: generator.sample(listing[name], count) for name in names}


def plant(listing: Listing, folder: Path, seed: int) -> tuple[set[str], set[str]]:
    """Copy photos into class folders, with errors; return the swapped files and the copies."""
    generator = random.Random(seed)
    pairs = [(name, path) for name, paths in listing.items() for path in paths]
    chosen = generator.sample(pairs, SWAPPED + COPIES)
    wrong = dict.fromkeys(path for _, path in chosen[:SWAPPED])
    swapped = set()
    for name in listing:
        (folder / name).mkdir(parents=True)
    for name, path in pairs:
        place = folder / name
        if path in wrong:
            place = folder / generator.choice([other for other in listing if other != name])
            swapped.add(str(place / path.name))
        shutil.copy(path, place / path.name)
    copies = set()
    for number, (name, path) in enumerate(chosen[SWAPPED:]):
        others = [other for other in listing if other != name]
        place = folder / (name if number % 2 else generator.choice(others))
        copies.add(str(write_copy(path, place / f"copy-{path.stem}", number // 2)))
    return swapped, copies


def write_copy(path: Path, target: Path, how: int) -> Path:
    """Copy a photo in one of five ways: as it is, of low quality, as PNG, and shrunk."""
    if how == 0:
        return Path(shutil.copy(path, target.with_suffix(".jpg")))
    with Image.open(path) as file:
        image = file.convert("RGB")
    if how == 2:
        image.save(target.with_suffix(".png"))
        return target.with_suffix(".png")
    image = image.reduce({1: 1, 3: 2, 4: 3}[how])
    image.save(target.with_suffix(".jpg"), quality=50)
    return target.with_suffix(".jpg")


def measure_command(root: Path, work: Path) -> tuple[Row, Row]:
    """Run the command on a folder with planted errors, and count what it finds."""
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        folder = Path(temporary) / "photos"
        swapped, copies = plant(draw_photos(root, *SHAPES[0], seed=0), folder, seed=0)
        line = [sys.executable, "-m", "fewmore", "check", str(folder), "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        findings = json.loads(done.stdout)["findings"]
    named = {one["images"][0] for one in findings if one["kind"] == "mislabelled"}
    groups = [one["images"] for one in findings if one["kind"] in ("duplicate", "two classes")]
    found = {image for group in groups for image in group if image in copies}
    other_groups = sum(not copies.intersection(group) for group in groups)
    false = len(named - swapped) + other_groups
    quality = ("blank", "blurred", "broken", "tiny", "too few")
    counts = {kind: sum(one["kind"] == kind for one in findings) for kind in quality}
    return make_row("command", SHAPES[0], len(named & swapped), false, len(found)), dict(counts)


def measure_labels(measured: Measured, seed: int) -> tuple[int, int]:
    """Swap labels of measured images; return how many are found, and how many others are named."""
    generator = random.Random(seed)
    labels = measured.labels.clone()
    classes = len(measured.source.names)
    swapped = set(generator.sample(range(len(measured)), SWAPPED))
    for index in swapped:
        labels[index] = (int(labels[index]) + generator.randrange(1, classes)) % classes
    result: CheckResult = check_measured(replace(measured, labels=labels), size=224)
    positions = {measured.positions[index] for index in swapped}
    named = {finding.positions[0] for finding in result.of_kind("mislabelled")}
    copies = len(result.of_kind("duplicate")) + len(result.of_kind("two classes"))
    return len(named & positions), len(named - positions) + copies


def make_row(
    what: str, shape: tuple[int, int], found: float, false: float, copies: float | str = ""
) -> Row:
    """Return a row of the table."""
    return {
        "what": what,
        "classes × photos": f"{shape[0]} × {shape[1]}",
        f"of {SWAPPED} swapped labels": found,
        f"of {COPIES} copies": copies,
        "false alarms": false,
    }


def main() -> None:
    """Measure the command, then labels of several shapes of folders and seeds."""
    root, args = parse_photos(__doc__)
    command, quality = measure_command(root, args.work)
    rows = [print_row(command)]
    for shape in SHAPES:
        source = collect_images(dict(draw_photos(root, *shape, seed=1)))
        embedder = IncrementalClassifier().build_embedder()
        measured = measure(source, embedder, lambda stage, done, total: None)
        for seed in range(SEEDS):
            row = make_row(f"labels, seed {seed}", shape, *measure_labels(measured, seed))
            rows.append(print_row(row))
    about: Row = {
        "backbone": "mobilenet_v2",
        "bar, swapped labels": LEAST_SWAPPED,
        "bar, false alarms": MOST_FALSE,
        "least found": min(int(row[f"of {SWAPPED} swapped labels"]) for row in rows),
        "most false alarms": max(int(row["false alarms"]) for row in rows),
        **{f"command, {kind}": count for kind, count in quality.items()},
    }
    record("check", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
