"""Can confidences be trusted after eight sessions? The expected calibration error on CIFAR100's last session.

    python benchmarks/calibration.py --device cuda [--data-root DATA] [--record results]

The classifier is trained from scratch on the 60 base classes by the recipe `official`, a tenth of their training images held
out; these alone choose the temperature and the threshold. Then it learns the eight sessions of the official split, and is asked
about the test images of all 100 classes. `--quick`, and always on a CPU, trains by the recipe `quick` on glyphs.
"""

import argparse
import time
from pathlib import Path

import torch
from common import record, shown
from torch import Tensor

from fewmore import IncrementalClassifier
from fewmore.classifier.calibration import auroc, expected_calibration_error
from fewmore.data import benchmarks
from fewmore.research.recipes import official, quick
from fewmore.training.loop import enable_cudnn_benchmark


def errors(scores: Tensor, labels: Tensor, temperature: float) -> tuple[float, float]:
    """Calibration error in percent without and with calibration."""
    right = scores.argmax(1) == labels
    return tuple(
        100 * expected_calibration_error((scores / t).softmax(1).amax(1), right)
        for t in (1.0, temperature)
    )  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.quick = args.quick or args.device == "cpu"
    enable_cudnn_benchmark(torch.device(args.device))
    began = time.perf_counter()
    task = benchmarks.load("glyphs" if args.quick else "cifar100", args.data_root)
    recipe = (quick if args.quick else official)(task.benchmark, "cec")
    base, *sessions = (session.of(task.train) for session in task.split.sessions)
    made = IncrementalClassifier(weights=None, recipe=recipe, device=args.device).fit(base)
    trained = time.perf_counter() - began
    temperature = made.calibration.temperature
    threshold = made.calibration.threshold
    rows: list[dict[str, object]] = []
    test = task.test.only(task.split.seen(len(task.split.sessions)))
    features = made.embed(test)
    for number, session in enumerate([None, *sessions]):
        if session is not None:
            made.learn(session)
        known = test.labels < len(made.classes_)
        scores, familiar = (
            made.scorer.scores(features[known]).cpu(),
            made.scorer.familiarity(features).cpu(),
        )
        before, after = errors(scores, test.labels[known], temperature)
        row: dict[str, object] = {
            "session": number,
            "classes": len(made.classes_),
            "accuracy %": 100 * float((scores.argmax(1) == test.labels[known]).float().mean()),
            "ECE uncalibrated %": before,
            "ECE calibrated %": after,
            "accepted as known %": 100
            * float((familiar[known] >= (threshold or 0)).float().mean()),
            "AUROC of classes to come": auroc(familiar[known], familiar[~known])
            if bool((~known).any())
            else "–",
        }
        rows.append(shown(row))
    about = {
        "benchmark": task.benchmark.name,
        "recipe": recipe.name,
        "held out": made.calibration.held_out,
        "temperature": temperature,
        "last session, uncalibrated %": rows[-1]["ECE uncalibrated %"],
        "last session, calibrated %": rows[-1]["ECE calibrated %"],
        "training s": trained,
        "all s": time.perf_counter() - began,
    }
    record("calibration", torch.device(args.device), rows, about, args.record)


if __name__ == "__main__":
    main()
