"""Measure how well confidences stay calibrated over eight sessions of CIFAR100.

    python benchmarks/calibration.py --device cuda [--data-root DATA] [--record results]

The classifier is trained from scratch on the 60 base classes by the recipe `official`, with a tenth
of their training images held out; these alone choose the temperature and the threshold. Then it
learns the eight sessions of the official split and is tested on the test images of all 100 classes.
`--quick`, and always on a CPU, trains by the recipe `quick` on glyphs.
"""

import time
from pathlib import Path

import torch
from common import Row, make_parser, print_row, record
from torch import Tensor

from fewmore import IncrementalClassifier
from fewmore.classifier.calibration import auroc, expected_calibration_error
from fewmore.data import loading
from fewmore.research.recipes import official, quick
from fewmore.training.device import prepare_device


def calibration_errors(scores: Tensor, labels: Tensor, temperature: float) -> list[float]:
    """Return the expected calibration error in percent, without and with calibration."""
    correct = scores.argmax(1) == labels
    return [
        100 * expected_calibration_error((scores / t).softmax(1).amax(1), correct)
        for t in (1.0, temperature)
    ]


def measure(classifier: IncrementalClassifier, features: Tensor, labels: Tensor) -> Row:
    """Measure the classifier as it is, on all test images of seen and of later classes."""
    known = labels < len(classifier.classes_)
    scores = classifier.scorer.scores(features[known]).cpu()
    familiarity = classifier.scorer.familiarity(features).cpu()
    calibration = classifier.calibration
    before, after = calibration_errors(scores, labels[known], calibration.temperature)
    correct = scores.argmax(1) == labels[known]
    accepted = familiarity[known] >= (calibration.threshold or 0)
    unknown = familiarity[~known]
    return {
        "classes": len(classifier.classes_),
        "accuracy %": 100 * float(correct.float().mean()),
        "ECE uncalibrated %": before,
        "ECE calibrated %": after,
        "accepted as known %": 100 * float(accepted.float().mean()),
        "AUROC of classes to come": auroc(familiarity[known], unknown) if len(unknown) else "–",
    }


def main() -> None:
    """Train, learn all sessions, and measure after each."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    quick_run = args.quick or args.device == "cpu"
    prepare_device(device)
    began = time.perf_counter()
    task = loading.load_task("glyphs" if quick_run else "cifar100", args.data_root)
    recipe = (quick if quick_run else official)(task.benchmark, "cec")
    base, *sessions = (session.select_from(task.train) for session in task.split.sessions)
    classifier = IncrementalClassifier(weights=None, recipe=recipe, device=args.device).fit(base)
    training_seconds = time.perf_counter() - began
    test = task.test.select_classes(task.split.seen(len(task.split.sessions)))
    features = classifier.embed(test)
    rows = []
    for number, session in enumerate([None, *sessions]):
        if session is not None:
            classifier.learn(session)
        measured = measure(classifier, features, test.labels)
        rows.append(print_row({"session": number, **measured}))
    about: Row = {
        "benchmark": task.benchmark.name,
        "recipe": recipe.name,
        "held out": classifier.calibration.held_out,
        "temperature": classifier.calibration.temperature,
        "last session, uncalibrated %": rows[-1]["ECE uncalibrated %"],
        "last session, calibrated %": rows[-1]["ECE calibrated %"],
        "training s": training_seconds,
        "all s": time.perf_counter() - began,
    }
    record("calibration", device, rows, about, args.record)


if __name__ == "__main__":
    main()
