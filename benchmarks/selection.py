"""Measure what choosing epochs and rounds on the test set is worth, as the authors' program does.

    python benchmarks/selection.py cub200 --data-root DATA --device cuda [--seeds 3]

The released program keeps the epoch of stage 1 that is best on the test images of the base classes,
and the round of stage 2 that is best on the test images of the last session. fewmore keeps the last
ones. This script trains as recipe `official` does, looks at the test set on the way and reports
both: their difference is the part of a published number that selection explains. Nothing in fewmore
is chosen by it. An arm changes one thing in which the authors' program may differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from common import Row, make_parser, print_row, record
from torch import Tensor

from fewmore.data.benchmarks import Task, find
from fewmore.data.images import ImageSet
from fewmore.methods.cec import CEC
from fewmore.nn.adapter import Adapter
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import SIMILARITIES
from fewmore.nn.weights import set_tensors
from fewmore.random import derive_seed
from fewmore.research.recipes import recipe
from fewmore.research.runner import RunOptions, load_task
from fewmore.training.embed import embed
from fewmore.training.pseudo_incremental import pseudo_incremental
from fewmore.training.runtime import Round, Runtime

EVERY = {"pretrain": 2, "pseudo-incremental": 4}  # rounds between two looks at the test set
FIRST = {"pretrain": 0.4, "pseudo-incremental": 0.0}  # share of the rounds before the first look
STARTS = ("last", "best")  # epochs of stage 1 that stage 2 starts from
ARMS: dict[str, tuple[tuple[str, ...], str | None]] = {  # settings and precision
    "official": ((), None),
    "batch norm over 32 images": (("pretrain.ghost=32",), None),
    "float32": ((), "fp32"),
}


@dataclass
class Best:
    """Hold the best accuracy so far and the weights that had it."""

    accuracy: float = -1.0
    state: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def offer(self, accuracy: float, modules: dict[str, torch.nn.Module]) -> None:
        """Keep the weights if they are at least as good as the best so far."""
        if accuracy >= self.accuracy:
            self.accuracy = accuracy
            self.state = {
                name: {key: tensor.clone() for key, tensor in module.state_dict().items()}
                for name, module in modules.items()
            }


class Trial:
    """Train both stages of CEC with one seed, and look at the test set on the way."""

    def __init__(
        self,
        task: Task,
        arm: str,
        seed: int,
        options: RunOptions,
        quick: bool,
        starts: Sequence[str],
    ) -> None:
        settings, precision = ARMS[arm]
        self.task = task
        self.starts = starts
        self.runtime = Runtime(
            options.device, precision, accel=options.accel, on_round=self._on_round
        )
        name = "quick" if quick else "official"
        self.method = CEC(
            recipe(name, find(task.benchmark.name), "cec", settings), self.runtime, seed
        )
        self.transform = self.method.recipe.transform
        self.sessions = [
            session.select_from(task.train).compact().to(options.device)
            for session in task.split.sessions
        ]
        self.test = [
            task.test.select_classes(session.classes).compact().to(options.device)
            for session in task.split.sessions
        ]
        self.look: Callable[[], None] = lambda: None

    def _on_round(self, report: Round) -> None:
        since = report.round - int(FIRST[report.stage] * report.rounds)
        if report.round == report.rounds or (since > 0 and since % EVERY[report.stage] == 0):
            self.look()

    def run(self) -> Row:
        """Return the accuracies of the last epoch and round, and of the best on the test set."""
        base, network = self.sessions[0], self.method.network
        best = Best()
        self.look = lambda: best.offer(self.accuracy(sessions=1), {"backbone": network.backbone})
        network.fit(base, "cosine", self.method.seed)
        last_state = {k: t.clone() for k, t in network.backbone.state_dict().items()}
        row: Row = {}
        for name, state in (("last", last_state), ("best", best.state["backbone"])):
            set_tensors(network.backbone, state)
            row[f"stage 1 {name}: base"] = self.accuracy(sessions=1)
            row[f"stage 1 {name}: last session"] = self.accuracy(len(self.sessions))
            if name in self.starts:
                row.update(self._stage2(f"stage 2 from {name}"))
        return row

    def _stage2(self, prefix: str) -> Row:
        method, network, best = self.method, self.method.network, Best()
        generator = torch.Generator().manual_seed(derive_seed(method.seed, "adapter"))
        adapter = Adapter(network.backbone.dim, method.config.adapter, generator)
        adapter.to(self.runtime.device)
        modules = {"backbone": network.backbone, "adapter": adapter}
        self.look = lambda: best.offer(self.accuracy(len(self.sessions), adapter), modules)
        pseudo_incremental(
            network.backbone,
            adapter,
            self.sessions[0],
            self.transform,
            method.config.pseudo,
            self.runtime,
            method.seed,
        )
        row: Row = {
            f"{prefix}, last round: base": self.accuracy(1, adapter),
            f"{prefix}, last round: last session": self.accuracy(len(self.sessions), adapter),
        }
        for name, module in modules.items():
            set_tensors(module, best.state[name])
        row[f"{prefix}, best round: base"] = self.accuracy(1, adapter)
        row[f"{prefix}, best round: last session"] = best.accuracy
        return row

    @torch.no_grad()
    def accuracy(self, sessions: int, adapter: Adapter | None = None) -> float:
        """Return the percentage of right answers after so many sessions, by class means."""
        prototypes = torch.cat([self._prototypes(images) for images in self.sessions[:sessions]])
        features = torch.cat([self._embed(images) for images in self.test[:sessions]])
        first = [0]
        for images in self.sessions[: sessions - 1]:
            first.append(first[-1] + len(images.class_names))
        labels = torch.cat(
            [test.labels + start for test, start in zip(self.test[:sessions], first, strict=True)]
        )
        if adapter is None:
            scores = SIMILARITIES["cosine"](features, prototypes)
        else:
            training = adapter.training
            adapter.eval()
            scores = adapter.scores(features, adapter.context(prototypes))
            adapter.train(training)
        return 100 * float((scores.argmax(1) == labels).float().mean())

    def _embed(self, images: ImageSet) -> Tensor:
        return embed(self.method.network.backbone, images, self.transform)

    def _prototypes(self, images: ImageSet) -> Tensor:
        return class_means(self._embed(images), images.labels, len(images.class_names))


def main() -> None:
    """Run the arms and record them."""
    parser = make_parser(__doc__)
    parser.add_argument("benchmark")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--arm", action="append", choices=ARMS, help="all of them by default")
    parser.add_argument(
        "--start", action="append", choices=STARTS, help="stage 1 that stage 2 starts from: both"
    )
    parser.add_argument("--no-accel", action="store_true")
    parser.add_argument("--quick", action="store_true", help="try the script, with recipe quick")
    args = parser.parse_args()
    options = RunOptions(args.device, accel=not args.no_accel)
    task = load_task(args.benchmark, options, args.data_root)
    starts = args.start or STARTS
    rows = []
    for arm in args.arm or ARMS:
        for seed in range(args.seeds):
            trial = Trial(task, arm, seed, options, args.quick, starts)
            rows.append(print_row({"arm": arm, "seed": seed, **trial.run()}))
    about: Row = {"benchmark": args.benchmark, "epochs looked at": str(EVERY)}
    record("selection", args.device, rows, about, args.record)


if __name__ == "__main__":
    main()
