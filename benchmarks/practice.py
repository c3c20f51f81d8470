"""Measure the classifier on a CPU: training, learning, predicting, a thousand additions, memory.

    python benchmarks/practice.py [--data-root DATA] [--threads 2] [--record results]

All times of a ratio are measured in this one run, alternating, and a ratio is that of the medians.
What is compared with is the engine that the classifier uses, on images that are decoded already.
`train_speed.py` compares training with embedding that decodes, too.
Images are miniImageNet's, 84 pixels a side. The backbone is mobilenet_v2 with ImageNet weights,
which have seen the classes of miniImageNet: the accuracies here tell what a user gets with everyday
objects, not how well unseen classes are learnt.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch
from common import Row, parse_photos, print_row, record
from PIL import Image
from torch import Tensor

from fewmore import IncrementalClassifier
from fewmore.classifier import model_file
from fewmore.classifier.calibration import auroc, expected_calibration_error
from fewmore.classifier.embedding import Embedder, square_size
from fewmore.classifier.fitting.from_scratch import HELD_OUT_ONE_IN, recipe_for
from fewmore.classifier.inputs import collect_images
from fewmore.classifier.model import Model
from fewmore.classifier.results import Prediction
from fewmore.data.decode import decode_image
from fewmore.errors import MissingData
from fewmore.methods.recipe import override
from fewmore.nn.adapter import Adapter

BASE_CLASSES = 20
BASE_IMAGES = 20  # per class
NEW_CLASSES = 10
SHOTS = 5
TEST_IMAGES = 20  # per class
ADAPTER_DIM = 128  # dimensions that an adapter works in
MANY = 1000  # classes added one by one from features
FOLDER_CLASSES = 25
FOLDER_IMAGES = (20, 100, 400)  # per class; an episode takes 16 of each
LARGE = (6000, 4000)  # pixels of one image in each class of these folders

Paths = dict[str, list[Path]]  # by class


def list_miniimagenet(root: Path, part: str) -> Paths:
    """List the files of miniImageNet that exist, by class, in the order of its table."""
    table = root / "miniimagenet" / "split" / f"{part}.csv"
    if not table.exists():
        raise MissingData(
            f"{table} does not exist: give the folder that contains miniimagenet with --data-root"
        )
    paths: Paths = {}
    for line in table.read_text(encoding="utf-8").splitlines()[1:]:
        name, label = line.split(",")
        path = root / "miniimagenet" / "images" / name
        paths.setdefault(label, [])
        if path.exists():
            paths[label].append(path)
    return paths


def median_seconds(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call.

    The calls alternate, so that other load on the machine affects all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if number:  # the first round is the warm-up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_training(train: Paths, test: Paths) -> tuple[IncrementalClassifier, list[Row]]:
    """Train on 20 × 20 images, learn 10 × 5 more, and measure accuracy after each."""
    names = list(train)
    base = {name: train[name][:BASE_IMAGES] for name in names[:BASE_CLASSES]}
    new = {name: train[name][:SHOTS] for name in names[60 : 60 + NEW_CLASSES]}
    began = time.perf_counter()
    classifier = IncrementalClassifier().fit(base)
    seconds = time.perf_counter() - began
    calibration = classifier.calibration
    plain = 100 * (calibration.sessions_plain or 0)
    chosen = 100 * (calibration.sessions_chosen or 0)
    rows: list[Row] = [
        {"what": "train, seconds", "value": seconds},
        {"what": "simulated sessions, plain cosine, %", "value": plain},
        {"what": f"simulated sessions, {classifier.model.head_name}, %", "value": chosen},
        {"what": "AUROC, base classes left out in turn", "value": calibration.auroc},
    ]
    features = {name: classifier.embed(test[name][:TEST_IMAGES]) for name in [*base, *new]}

    def predict() -> dict[str, list[Prediction]]:
        return {name: classifier.predict_features(images) for name, images in features.items()}

    predictions = predict()
    rows += accuracy_rows(f"{BASE_CLASSES} classes", predictions, list(base))
    known, unknown = (
        torch.tensor([each.familiarity for name in part for each in predictions[name]])
        for part in (base, new)
    )
    what = f"AUROC, images of known classes against those of {NEW_CLASSES} others"
    rows.append({"what": what, "value": auroc(known, unknown)})
    classifier.learn(new)
    predictions = predict()
    parts = {
        "all classes": [*base, *new],
        "old classes": list(base),
        "new classes": list(new),
    }
    for what, part in parts.items():
        after = f"{what} after learning {NEW_CLASSES} × {SHOTS}"
        rows += accuracy_rows(after, predictions, part)
    return classifier, rows


def embed_squares(embedder: Embedder, squares: Sequence[Tensor]) -> None:
    """Compute the features of batches of squares, several at once where the engine can."""
    for _ in embedder.map_batches(embedder.features, squares):
        pass


def accuracy_rows(
    what: str, predictions: dict[str, list[Prediction]], names: list[str]
) -> list[Row]:
    """Return accuracy, calibration error and acceptance on test images of these classes."""
    pairs = [(name, prediction) for name in names for prediction in predictions[name]]
    correct = torch.tensor([prediction.names[0] == name for name, prediction in pairs])
    confidences = torch.tensor([prediction.confidences[0] for _, prediction in pairs])
    known = torch.tensor([prediction.known for _, prediction in pairs])
    error = 100 * expected_calibration_error(confidences, correct)
    return [
        {"what": f"accuracy, {what}, %", "value": 100 * float(correct.float().mean())},
        {"what": f"calibration error, {what}, %", "value": error},
        {"what": f"accepted as known, {what}, %", "value": 100 * float(known.float().mean())},
    ]


def measure_overhead(classifier: IncrementalClassifier, images: list[Tensor]) -> list[Row]:
    """Compare `learn` of 5 × 5 and `predict` of one image with the engine on decoded images.

    The classifier is filled up to 100 known classes.
    """
    generator = torch.Generator().manual_seed(0)
    embedder = classifier.embedder
    fillers = {
        f"filler {i}": torch.rand(5, embedder.dim, generator=generator)
        for i in range(100 - len(classifier.classes_))
    }
    classifier.learn_features(fillers)
    lesson = {f"new {i}": images[5 * i : 5 * i + 5] for i in range(5)}
    size = square_size(embedder.transform)
    squares = torch.randint(0, 256, (25, 3, size, size), dtype=torch.uint8, generator=generator)

    def forward(count: int) -> None:
        embed_squares(embedder, torch.split(squares[:count], embedder.stream_batch))

    def learn() -> None:
        classifier.learn(lesson)
        classifier.undo()

    many = median_seconds({"learn": learn, "embed": lambda: forward(25)}, 7)
    single_calls = {
        "predict": lambda: classifier.predict(images[0]),
        "forward": lambda: forward(1),
    }
    single = median_seconds(single_calls, 40)
    return [
        {"what": "learn 5 × 5 at 100 classes, ms", "value": 1e3 * many["learn"]},
        {"what": "embedding 25 images, ms", "value": 1e3 * many["embed"]},
        {"what": "learn × embedding", "value": many["learn"] / many["embed"], "bar": 1.5},
        {"what": "predict one image at 100 classes, ms", "value": 1e3 * single["predict"]},
        {"what": "embedding one image, ms", "value": 1e3 * single["forward"]},
        {"what": "predict × embedding", "value": single["predict"] / single["forward"], "bar": 1.2},
    ]


def measure_additions(model: Model, path: Path) -> list[Row]:
    """Add a thousand classes, with the cosine alone and with an adapter."""
    generator = torch.Generator().manual_seed(0)
    projection = torch.linalg.qr(torch.randn(model.dim, ADAPTER_DIM, generator=generator))[0]
    adapter = dict(Adapter(ADAPTER_DIM, generator=generator).state_dict())
    models = {
        "cosine": replace(model, adapter=None, projection=None),
        "with an adapter": replace(model, adapter=adapter, projection=projection),
    }
    rows = []
    for head, variant in models.items():
        model_file.write(path, variant)
        rows += [{**row, "what": f"{row['what']}, {head}"} for row in addition_rows(path)]
    return rows


def addition_rows(path: Path) -> list[Row]:
    """Compare adding classes one by one with adding all at once, which must give the same."""
    generator = torch.Generator().manual_seed(0)
    dim = model_file.read(path).dim
    features = torch.rand(MANY, 5, dim, generator=generator)
    queries = torch.rand(50, dim, generator=generator)
    firsts = []
    lasts = []
    for _ in range(5):
        one_by_one = IncrementalClassifier.load(path)
        one_by_one.forget(one_by_one.classes_)
        times = []
        for number, shots in enumerate(features):
            began = time.perf_counter()
            one_by_one.learn_features({f"class {number}": shots})
            times.append(time.perf_counter() - began)
        firsts.append(statistics.median(times[:20]))
        lasts.append(statistics.median(times[-20:]))
    at_once = IncrementalClassifier.load(path)
    at_once.forget(at_once.classes_)
    at_once.learn_features({f"class {number}": shots for number, shots in enumerate(features)})
    pairs = list(
        zip(one_by_one.predict_features(queries), at_once.predict_features(queries), strict=True)
    )
    equal = all(first.names == second.names for first, second in pairs)
    difference = max(abs(a.confidences[0] - b.confidences[0]) for a, b in pairs)
    first = statistics.median(firsts)
    last = statistics.median(lasts)
    return [
        {"what": "first addition, ms (median of the first twenty)", "value": 1e3 * first},
        {"what": "1,000th addition, ms (median of the last twenty)", "value": 1e3 * last},
        {"what": "1,000th × first", "value": last / first, "bar": 3.0},
        {"what": "predictions equal to learning all at once", "value": str(equal).lower()},
        {"what": "largest difference of their confidences", "value": difference},
    ]


def measure_memory(images: Paths, threads: int, work: Path) -> list[Row]:
    """Measure the peak memory of training on more and more images, each in a new process."""
    rows = []
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        large = Path(temporary) / "large.jpg"
        Image.radial_gradient("L").resize(LARGE).convert("RGB").save(large)
        for count in FOLDER_IMAGES:
            folder = Path(temporary) / str(count)
            for name, paths in islice(images.items(), FOLDER_CLASSES):
                (folder / name).mkdir(parents=True)
                for path in [large, *paths[: count - 1]]:
                    (folder / name / path.name).symlink_to(path.resolve())
            size = f"{FOLDER_CLASSES * count:,} images of {FOLDER_CLASSES} classes"
            for start in ("pretrained", "from scratch"):
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    training = pool.submit(peak_of_training, folder, start, threads)
                    peak = training.result()
                what = f"peak memory of training, {start}, {size}, MB"
                rows.append(print_row({"what": what, "value": peak}))
    return rows


def peak_of_training(folder: Path, start: str, threads: int) -> float:
    """Return the peak megabytes of this process after training, Python and PyTorch included.

    From scratch it trains for a moment only.
    """
    torch.set_num_threads(threads)
    recipe = None
    if start == "from scratch":
        counts = collect_images(folder).counts().tolist()
        trained_on = [count - max(1, count // HELD_OUT_ONE_IN) for count in counts]
        pseudo = {"episodes": 50, "base_way": 5, "new_way": 5}
        changes = {"pretrain": {"epochs": 1}, "method": {"pseudo": pseudo}}
        recipe = override(recipe_for("resnet20", trained_on), changes)
    IncrementalClassifier(recipe=recipe).fit(folder)
    (kilobytes,) = (
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(kilobytes) / 1024


def main() -> None:
    """Measure everything in turn."""
    root, args = parse_photos(__doc__)
    train = list_miniimagenet(root, "train")
    test = list_miniimagenet(root, "test")
    with tempfile.TemporaryDirectory(dir=args.work) as temporary:
        os.environ["FEWMORE_CACHE"] = temporary  # no features are in it when a training begins
        _ = IncrementalClassifier().build_embedder().engine  # but the engine's graph is
        classifier, rows = measure_training(train, test)
        rows += measure_additions(classifier.model, Path(temporary) / "added.fewmore")
        rows += measure_memory(train, args.threads, Path(temporary))
    images = [decode_image(path) for path in test[list(test)[30]][:25]]
    rows += measure_overhead(classifier, images)
    for row in rows:
        print_row(row)
    info = classifier.info()
    about: Row = {
        "backbone": info["backbone"],
        "engine": classifier.embedder.engine.name,
        "threads": torch.get_num_threads(),
        "classifier": info["classifier"],
        "remark": "ImageNet weights have seen the classes of miniImageNet",
    }
    record("practice", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
