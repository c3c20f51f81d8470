"""The practitioner's door on a CPU: learning and predicting beside the backbone's own time, a thousand additions, training and its memory.

    python benchmarks/practice.py [--data-root DATA] [--threads 2] [--record results]

All times of a ratio are measured in this one run, in turn, and a ratio is that of the medians. Images are miniImageNet's, 84
pixels a side. The backbone is mobilenet_v2 with ImageNet weights, which have seen the classes of miniImageNet: the accuracies
here say what a person gets with everyday things, not how well unseen ones are learnt.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch
from common import record
from common import shown as told
from PIL import Image
from torch import Tensor

from fewmore import IncrementalClassifier
from fewmore.classifier import model_file as modelfile
from fewmore.classifier.calibration import auroc, expected_calibration_error
from fewmore.classifier.embedding import decode_batches
from fewmore.classifier.inputs import collect_images
from fewmore.classifier.results import Prediction
from fewmore.classifier.fitting import DIRECTIONS, TENTH, recipe_for
from fewmore.classifier.model_file import Model
from fewmore.data.augment import normalize
from fewmore.data.decode import decode_image
from fewmore.data.paths import data_root
from fewmore.errors import MissingData
from fewmore.methods.base import override
from fewmore.nn.adapter import Adapter

CLASSES, IMAGES = 20, 20  # of the small training
NEW, SHOTS = 10, 5  # learnt after it
TESTS = 20  # images a class
MANY = 1000  # additions from features
FOLDERS = (
    20,
    100,
    400,
)  # images a class, of the folders whose training's memory is measured; an episode takes 16 of each
FOLDER_CLASSES = 25
LARGE = (6000, 4000)  # pixels of one image in each of their classes


def listed(root: Path, part: str) -> dict[str, list[Path]]:
    """The files of miniImageNet that are there, by class, in the order of its table."""
    table = root / "miniimagenet" / "split" / f"{part}.csv"
    if not table.exists():
        raise MissingData(
            f"{table} is not there: give the folder that miniimagenet lies in with --data-root"
        )
    found: dict[str, list[Path]] = {}
    for line in table.read_text(encoding="utf-8").splitlines()[1:]:
        name, label = line.split(",")
        found.setdefault(label, []).append(root / "miniimagenet" / "images" / name)
    return {label: [path for path in paths if path.exists()] for label, paths in found.items()}


def timed(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each call; they take turns, so that whatever slows the machine slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def train(
    train: dict[str, list[Path]], test: dict[str, list[Path]]
) -> tuple[IncrementalClassifier, list[dict[str, object]]]:
    """20 × 20 images, then 10 × 5 more; accuracy after each, and time beside that of embedding all the views used."""
    names = list(train)
    base = {name: train[name][:IMAGES] for name in names[:CLASSES]}
    new = {name: train[name][:SHOTS] for name in names[60 : 60 + NEW]}
    began = time.perf_counter()
    made = IncrementalClassifier().fit(base)
    seconds = time.perf_counter() - began
    # The same views once more, decoded beforehand: what no way of training on them could do without.
    given, backbone, transform = collect_images(base), made.embedder.backbone, made.embedder.transform
    margin = ((transform.resize or transform.size) - transform.size) // 2
    views = []
    for batch in decode_batches(given.images, given.titles, transform, made.embedder.batch_size):
        cut = batch.images[
            :, :, margin : margin + transform.size, margin : margin + transform.size
        ]
        views += [normalize(torch.rot90(cut, turn, (2, 3)), transform) for turn in range(4)]
    began = time.perf_counter()
    with torch.no_grad():
        for view in views:
            backbone(view)
    embedding = time.perf_counter() - began
    calibration = made.calibration
    rows: list[dict[str, object]] = [
        {"what": "train, seconds", "value": seconds},
        {"what": "embedding all views used, seconds", "value": embedding},
        {"what": "train × embedding", "value": seconds / embedding, "bar": 1.5},
        {
            "what": "pseudo-sessions, plain cosine, %",
            "value": 100 * (calibration.sessions_plain or 0),
        },
        {"what": "pseudo-sessions, adapter, %", "value": 100 * (calibration.sessions_adapted or 0)},
        {"what": "AUROC, base classes left out in turn", "value": calibration.auroc},
    ]
    tests = {name: made.embed(test[name][:TESTS]) for name in [*base, *new]}
    asked = {name: made.predict_features(features) for name, features in tests.items()}
    rows += judged(f"{CLASSES} classes", asked, list(base))
    known, strange = (
        torch.tensor([one.familiarity for name in part for one in asked[name]])
        for part in (base, new)
    )
    rows.append(
        {
            "what": f"AUROC, images of known classes against those of {NEW} others",
            "value": auroc(known, strange),
        }
    )
    made.learn(new)
    asked = {name: made.predict_features(features) for name, features in tests.items()}
    for what, part in (
        ("all classes", [*base, *new]),
        ("old classes", list(base)),
        ("new classes", list(new)),
    ):
        rows += judged(f"{what} after learning {NEW} × {SHOTS}", asked, part)
    return made, rows


def judged(
    what: str, asked: dict[str, list[Prediction]], names: list[str]
) -> list[dict[str, object]]:
    """Accuracy, calibration error and acceptance of test images of these classes."""
    right = torch.tensor([one.names[0] == name for name in names for one in asked[name]])
    sure = torch.tensor([one.confidences[0] for name in names for one in asked[name]])
    known = torch.tensor([one.known for name in names for one in asked[name]])
    return [
        {"what": f"accuracy, {what}, %", "value": 100 * float(right.float().mean())},
        {
            "what": f"calibration error, {what}, %",
            "value": 100 * expected_calibration_error(sure, right),
        },
        {"what": f"accepted as known, {what}, %", "value": 100 * float(known.float().mean())},
    ]


def beside_the_backbone(
    trained: IncrementalClassifier, images: list[Tensor]
) -> list[dict[str, object]]:
    """`learn` of 5 × 5 and `predict` of one image, at 100 known classes, beside the backbone on views that are ready."""
    generator = torch.Generator().manual_seed(0)
    dim = trained.embedder.dim
    trained.learn_features(
        {
            f"filler {i}": torch.rand(5, dim, generator=generator)
            for i in range(100 - len(trained.classes_))
        }
    )
    lesson = {f"new {i}": images[5 * i : 5 * i + 5] for i in range(5)}
    transform, backbone = trained.embedder.transform, trained.embedder.backbone
    views = torch.rand(25, 3, transform.size, transform.size, generator=generator).contiguous(
        memory_format=torch.channels_last
    )

    def forward(count: int) -> None:
        with torch.no_grad():
            for part in torch.split(views[:count], trained.embedder.batch_size):
                backbone(part)

    def learn() -> None:
        trained.learn(lesson)
        trained.undo()

    many = timed({"learn": learn, "embed": lambda: forward(25)}, 7)
    one = timed({"predict": lambda: trained.predict(images[0]), "forward": lambda: forward(1)}, 40)
    return [
        {"what": "learn 5 × 5 at 100 classes, ms", "value": 1e3 * many["learn"]},
        {"what": "backbone on 25 images, ms", "value": 1e3 * many["embed"]},
        {"what": "learn × embedding", "value": many["learn"] / many["embed"], "bar": 1.5},
        {"what": "predict one image at 100 classes, ms", "value": 1e3 * one["predict"]},
        {"what": "backbone on one image, ms", "value": 1e3 * one["forward"]},
        {"what": "predict × forward", "value": one["predict"] / one["forward"], "bar": 1.2},
    ]


def additions(model: Model, path: Path) -> list[dict[str, object]]:
    """A thousand classes one by one from features; then all at once, which must come to the same: plain, and with an adapter."""
    generator = torch.Generator().manual_seed(0)
    projection = torch.linalg.qr(torch.randn(model.dim, DIRECTIONS, generator=generator))[0]
    adapter = dict(Adapter(DIRECTIONS, generator=generator).state_dict())
    rows = []
    for what, head in (("plain cosine", (None, None)), ("with an adapter", (adapter, projection))):
        modelfile.write(path, replace(model, adapter=head[0], projection=head[1]))
        rows += [{**row, "what": f"{row['what']}, {what}"} for row in one_by_one_and_at_once(path)]
    return rows


def one_by_one_and_at_once(path: Path) -> list[dict[str, object]]:
    generator = torch.Generator().manual_seed(0)
    dim = modelfile.read(path).dim
    features = torch.rand(MANY, 5, dim, generator=generator)
    queries = torch.rand(50, dim, generator=generator)
    firsts, lasts = [], []
    for _ in range(5):
        one_by_one = IncrementalClassifier.load(path)
        one_by_one.forget(one_by_one.classes_)
        times = []
        for number, rows in enumerate(features):
            began = time.perf_counter()
            one_by_one.learn_features({f"class {number}": rows})
            times.append(time.perf_counter() - began)
        firsts.append(statistics.median(times[:20]))
        lasts.append(statistics.median(times[-20:]))
    at_once = IncrementalClassifier.load(path)
    at_once.forget(at_once.classes_)
    at_once.learn_features({f"class {number}": rows for number, rows in enumerate(features)})
    pairs = list(
        zip(one_by_one.predict_features(queries), at_once.predict_features(queries), strict=True)
    )
    equal = all(one.names == other.names for one, other in pairs)
    apart = max(abs(one.confidences[0] - other.confidences[0]) for one, other in pairs)
    first, last = statistics.median(firsts), statistics.median(lasts)
    return [
        {"what": "first addition, ms (median of the first twenty)", "value": 1e3 * first},
        {"what": "1,000th addition, ms (median of the last twenty)", "value": 1e3 * last},
        {"what": "1,000th × first", "value": last / first, "bar": 3.0},
        {"what": "predictions equal to learning all at once", "value": str(equal).lower()},
        {"what": "largest difference of their confidences", "value": apart},
    ]


def memory(images: dict[str, list[Path]], threads: int, work: Path) -> list[dict[str, object]]:
    """Peak memory of training on more and more images, all else being equal; each folder is trained on by a new process."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=work) as folder:
        large = Path(folder) / "large.jpg"
        Image.radial_gradient("L").resize(LARGE).convert("RGB").save(large)
        for count in FOLDERS:
            place = Path(folder) / str(count)
            for name, paths in islice(images.items(), FOLDER_CLASSES):
                (place / name).mkdir(parents=True)
                for path in [large, *paths[: count - 1]]:
                    (place / name / path.name).symlink_to(path.resolve())
            for way, scratch in (("pretrained", False), ("from scratch", True)):
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    peak = pool.submit(peak_of_training, place, scratch, threads).result()
                what = f"peak memory of training, {way}, {FOLDER_CLASSES * count:,} images of {FOLDER_CLASSES} classes, MB"
                rows.append(told({"what": what, "value": peak}))
    return rows


def peak_of_training(folder: Path, scratch: bool, threads: int) -> float:
    """Megabytes that this process ever held, Python and PyTorch among them. From scratch it trains for a moment only."""
    torch.set_num_threads(threads)
    recipe = None
    if scratch:
        recipe = recipe_for(
            "resnet20",
            [count - max(1, count // TENTH) for count in collect_images(folder).counts().tolist()],
        )
        pseudo = {"episodes": 50, "base_way": 5, "new_way": 5}
        recipe = override(recipe, {"pretrain": {"epochs": 1}, "method": {"pseudo": pseudo}})
    IncrementalClassifier(recipe=recipe).fit(folder)
    (peak,) = (
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(peak) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("/tmp"),
        help="where model files and folders of links may lie for a moment",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    root = data_root(args.data_root)
    os.environ["FEWMORE_DATA"] = str(root)  # where the weights lie too, for other processes as well
    images, tests = listed(root, "train"), listed(root, "test")
    made, rows = train(images, tests)
    file = args.work / "practice-benchmark.fewmore"
    try:
        rows += additions(made.model, file)
    finally:
        file.unlink(missing_ok=True)
    rows += memory(images, args.threads, args.work)
    decoded = [decode_image(path) for path in tests[list(tests)[30]][:25]]
    rows += beside_the_backbone(made, decoded)
    for row in rows:
        told(row)
    about: dict[str, object] = {
        "backbone": made.info()["backbone"],
        "threads": torch.get_num_threads(),
        "classifier": made.info()["classifier"],
        "remark": "ImageNet weights have seen the classes of miniImageNet",
    }
    record("practice", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
