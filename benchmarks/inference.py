"""Measure `predict` on 1,000 photos of 500 pixels beside bare loops over the same files.

    python benchmarks/inference.py [--data-root DATA] [--threads 2] [--rounds 5] [--record results]

The classifier has mobilenet_v2 at 224 pixels and 40 kinds of birds; the photos were not learnt. A
bare loop opens files by Pillow, resizes and crops them, and runs the same network on batches: by
PyTorch as it comes, by ONNX Runtime or by OpenVINO. It predicts nothing. Each is tried in several
configurations, one loop on all cores or one a core in smaller and larger batches, and measured in
its fastest. "predict as it was" is PyTorch by 64 photos at a time, one batch after the other, each
whitened when it is embedded.

A machine's speed drifts, so rounds of `predict` alternate with what it is compared to, and each is
compared with the mean of its two neighbours. A ratio is the median over the rounds. Times are of
calls in a process that has run before; the whole command, with its start, is measured as well.
"""

import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from operator import eq
from pathlib import Path

import numpy as np
import torch
from common import Row, alternate, median_ratio, parse_photos, print_row, record
from export import Listing, draw_photos
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier.engines.base import INT8
from fewmore.classifier.engines.graph import onnx_graph
from fewmore.classifier.engines.pytorch import TorchEngine
from fewmore.data.augment import normalize
from fewmore.data.transform import Transform
from fewmore.nn.backbones import Backbone, build
from fewmore.nn.weights import set_tensors

ROOT = Path(__file__).resolve().parent.parent
TRIED = 96  # photos of a trial of a configuration
SIZES = (1, 4, 16)  # of batches
BEFORE = "c9b6ee8"  # the commit before features came from ONNX Runtime or OpenVINO
# It trains on the photos of its first line of input, and times a prediction for every further line.
PREDICT_AS_ASKED = """
import json, sys, time, torch
from fewmore import IncrementalClassifier
threads, learnt, paths = json.loads(sys.stdin.readline())
torch.set_num_threads(threads)
classifier = IncrementalClassifier(device="cpu").fit(learnt)
classifier.predict(paths[:64], top=1)
print("trained", flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    classifier.predict(paths, top=1)
    print(time.perf_counter() - began, flush=True)
"""
ENGINES = ("torch", "onnxruntime", "openvino")
BARS = {"predict × fastest bare loop": 0.95, "predict × predict as it was": 2.0}

Network = Callable[[np.ndarray], object]  # (n, 3, s, s) uint8 to features
MakeNetwork = Callable[[int], Network]  # from the number of threads of a call


# Bare loops


def read(path: Path, transform: Transform) -> np.ndarray:
    """Read a photo as a program without fewmore does: (3, s, s) uint8."""
    side = transform.resize or transform.size
    with Image.open(path) as file:
        file.draft("RGB", (2 * side, 2 * side))
        image = file.convert("RGB")
    scale = side / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), 2)
    left = (image.width - transform.size) // 2
    top = (image.height - transform.size) // 2
    image = image.crop((left, top, left + transform.size, top + transform.size))
    return np.asarray(image).transpose(2, 0, 1)


def run_loops(
    paths: Sequence[Path], transform: Transform, network: Network, loops: int, size: int
) -> float:
    """Return photos a second of so many loops at once, which share the photos."""
    starts = iter(range(0, len(paths), size))
    lock = threading.Lock()

    def loop() -> None:
        while True:
            with lock:
                start = next(starts, None)
            if start is None:
                return
            batch = [read(path, transform) for path in paths[start : start + size]]
            network(np.stack(batch))

    began = time.perf_counter()
    threads = [threading.Thread(target=loop) for _ in range(loops)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(paths) / (time.perf_counter() - began)


def by_torch(backbone: Backbone, transform: Transform) -> MakeNetwork:
    """Run the network by PyTorch, as it was built."""
    plain = backbone.eval()

    def make(threads: int) -> Network:
        def run(images: np.ndarray) -> object:
            torch.set_num_threads(threads)
            with torch.inference_mode():
                return plain(normalize(torch.from_numpy(images), transform))

        return run

    return make


def by_onnxruntime(graph: bytes) -> MakeNetwork:
    """Run the graph by ONNX Runtime."""
    import onnxruntime

    def make(threads: int) -> Network:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        return lambda images: session.run(None, {"images": images})

    return make


def by_openvino(graph: bytes, cores: int) -> MakeNetwork:
    """Run the graph by OpenVINO."""
    import openvino

    core = openvino.Core()

    def make(threads: int) -> Network:
        streams = {"NUM_STREAMS": cores // threads, "INFERENCE_NUM_THREADS": cores}
        settings = {**streams, "INFERENCE_PRECISION_HINT": "f32"}
        model = core.compile_model(core.read_model(graph), "CPU", settings)
        of_thread = threading.local()

        def run(images: np.ndarray) -> object:
            if not hasattr(of_thread, "request"):
                of_thread.request = model.create_infer_request()
            return of_thread.request.infer([images])

        return run

    return make


def fastest_loop(
    paths: Sequence[Path], transform: Transform, make: MakeNetwork, cores: int
) -> tuple[Callable[[], float], dict[str, float]]:
    """Try all configurations; return the fastest as a function, and the speeds of all."""
    speeds = {}
    loops = {}
    for count, size in itertools.product(sorted({1, cores}), SIZES):
        network = make(cores // count)
        network(np.stack([read(path, transform) for path in paths[:size]]))  # a warm-up
        name = f"{count} × batches of {size}"
        speeds[name] = run_loops(paths[:TRIED], transform, network, count, size)
        loops[name] = (network, count, size)
    best = loops[max(speeds, key=speeds.__getitem__)]
    return lambda: run_loops(paths, transform, *best), speeds


# fewmore


def speed(call: Callable[[], object], photos: int) -> float:
    """Return photos a second of a call."""
    began = time.perf_counter()
    call()
    return photos / (time.perf_counter() - began)


class Before:
    """Run `predict` of an earlier commit in a process of its own, trained on the same photos."""

    def __init__(self, folder: Path, learnt: Listing, paths: Sequence[Path], threads: int) -> None:
        archive = subprocess.run(["git", "archive", BEFORE, "src"], cwd=ROOT, capture_output=True)
        archive.check_returncode()
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as file:
            file.extractall(folder, filter="data")
        self.paths = paths
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREDICT_AS_ASKED],
            env={**os.environ, "PYTHONPATH": str(folder / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        photos = {name: list(map(str, of_class)) for name, of_class in learnt.items()}
        self._ask(json.dumps([threads, photos, list(map(str, paths))]))

    def __call__(self) -> float:
        """Return photos a second."""
        return len(self.paths) / float(self._ask("predict"))

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline()

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def time_command(model: Path, paths: Sequence[Path], folder: Path) -> float:
    """Return photos a second of the whole command."""
    (folder / "photos.txt").write_text("\n".join(map(str, paths)) + "\n")
    (folder / "out.csv").unlink(missing_ok=True)
    command = [sys.executable, "-m", "fewmore", "predict", str(model), str(folder / "photos.txt")]
    command += ["-o", str(folder / "out.csv")]
    return speed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), len(paths))


def compare(
    plain: IncrementalClassifier, fast: IncrementalClassifier, paths: list[Path]
) -> dict[str, float]:
    """Compare features and predictions of two engines on photos."""
    ours, theirs = plain.embed(paths), fast.embed(paths)
    names = [
        [one.names[0] for one in classifier.predict_features(features, 1)]
        for classifier, features in ((plain, ours), (fast, theirs))
    ]
    return {
        "photos with the same class, %": 100 * statistics.mean(map(eq, *names)),
        "largest difference of a feature": float((ours - theirs).abs().max()),
    }


def measure_int8(
    learnt: Listing, known: Listing, model: Path, paths: list[Path]
) -> dict[str, float]:
    """Compare int8 with float: accuracy of a model that was trained in float or in int8, speed."""
    images = [path for of_class in known.values() for path in of_class]
    labels = [name for name, of_class in known.items() for _ in of_class]

    def accuracy(classifier: IncrementalClassifier) -> float:
        return 100 * classifier.score(images, labels)

    in_float = IncrementalClassifier.load(model, "cpu")
    in_int8 = IncrementalClassifier.load(model, "cpu", INT8)
    trained_in_int8 = IncrementalClassifier(device="cpu", engine=INT8).fit(learnt)
    slow, fast = alternate(
        lambda: speed(lambda: in_float.predict(paths, top=1), len(paths)),
        lambda: speed(lambda: in_int8.predict(paths, top=1), len(paths)),
        2,
    )
    return {
        "accuracy, %": accuracy(in_float),
        "accuracy of the same model in int8, %": accuracy(in_int8),
        "accuracy, trained and predicted in int8, %": accuracy(trained_in_int8),
        "predict in int8 × predict": 1 / median_ratio(slow, fast),
    }


def bare_loops(
    classifier: IncrementalClassifier, paths: Sequence[Path], cores: int
) -> tuple[dict[str, Callable[[], float]], dict[str, dict[str, float]]]:
    """Return each bare loop in its fastest configuration, and the speeds of all."""
    transform = classifier.embedder.transform
    backbone = build(classifier.model.backbone)
    set_tensors(backbone, classifier.model.weights)
    graph = onnx_graph(TorchEngine(classifier.embedder.backbone, transform))
    made = {
        "PyTorch": by_torch(backbone, transform),
        "ONNX Runtime": by_onnxruntime(graph),
        "OpenVINO": by_openvino(graph, cores),
    }
    loops = {}
    tried = {}
    for name, make in made.items():
        loops[name], tried[name] = fastest_loop(paths, transform, make, cores)
        print(name, json.dumps(tried[name]), flush=True)
    torch.set_num_threads(cores)
    return loops, tried


def main() -> None:
    """Measure all loops, `predict` beside the fastest and beside itself, and the agreement."""
    root, args = parse_photos(__doc__, rounds=5, photos=1000)
    load_before = os.getloadavg()
    learnt, known, unknown = draw_photos(root)
    paths = [path for of_class in known.values() for path in of_class] + unknown
    paths = paths[: args.photos]
    with tempfile.TemporaryDirectory(dir=args.work) as temporary:
        folder = Path(temporary)
        model = folder / "birds.fewmore"
        IncrementalClassifier(device="cpu").fit(learnt).save(model)
        by_engine = {name: IncrementalClassifier.load(model, "cpu", name) for name in ENGINES}
        fast = IncrementalClassifier.load(model, "cpu")
        loops, tried = bare_loops(fast, paths, args.threads)
        speeds = {name: loop() for name, loop in loops.items()}
        best = max(speeds, key=speeds.__getitem__)

        def predict() -> float:
            torch.set_num_threads(args.threads)
            return speed(lambda: fast.predict(paths, top=1), len(paths))

        predict()
        beside_loop, of_loop = alternate(predict, loops[best], args.rounds)
        with closing(Before(folder, learnt, paths, args.threads)) as before:
            as_it_was, beside_old = alternate(before, predict, max(1, args.rounds // 2))
        command = time_command(model, paths, folder)
        int8 = measure_int8(learnt, known, model, paths)
        agreement = {
            name: compare(by_engine["torch"], by_engine[name], paths) for name in ENGINES[1:]
        }
    values = [(f"bare loop, {name}, photos/s", value) for name, value in speeds.items()]
    values += [
        (f"bare loop beside predict, {best}, photos/s", statistics.median(of_loop)),
        ("predict, photos/s", statistics.median(beside_loop)),
        ("predict × fastest bare loop", median_ratio(beside_loop, of_loop)),
        ("predict as it was, photos/s", statistics.median(as_it_was)),
        ("predict × predict as it was", 1 / median_ratio(as_it_was, beside_old)),
        ("the whole command, with its start, photos/s", command),
        *int8.items(),
    ]
    for name, of_engine in agreement.items():
        values += [(f"{name} and PyTorch, {what}", value) for what, value in of_engine.items()]
    rows = [
        print_row({"what": what, "value": value, **({"bar": BARS[what]} if what in BARS else {})})
        for what, value in values
    ]
    about: Row = {
        "backbone": fast.model.backbone,
        "engine": fast.embedder.engine.name,
        "photos": len(paths),
        "cores": args.threads,
        "load of the machine before": load_before,
        "configurations tried, photos/s": tried,
        "rounds": {
            "predict": beside_loop,
            "fastest bare loop": of_loop,
            "predict as it was": as_it_was,
            "predict beside it": beside_old,
        },
    }
    record("inference", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
