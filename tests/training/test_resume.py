"""Test that a run which is killed many times ends with the same bits as an undisturbed one.

The short form and the soak are the same code with other kills. A process is killed from outside
after some time, or it kills itself in the middle of writing a file, which a random time would
hardly ever meet.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.research import results
from fewmore.training.checkpoint import State, read_state

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process without its notice"
)

# `fewmore` itself, but it saves every round, reports its beginning and end, and may die while it
# writes a file.
PROGRAM = """
import dataclasses, os, signal, stat, sys
import torch._dynamo  # an optimizer imports it, which takes longer than the whole training
from fewmore.cli import main
from fewmore.research import runner

number, moment = int(sys.argv[1]), sys.argv[2]  # which file, counted from 1, and when
fsync, replace, run_plans = os.fsync, os.replace, runner.run_plans
written = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying_fsync(file):
    global written
    fsync(file)
    if stat.S_ISDIR(os.fstat(file).st_mode):  # a folder, after the rename
        return
    written += 1
    if written == number and moment == "partly":
        os.ftruncate(file, os.fstat(file).st_size // 2)
        die()
    if written == number and moment == "before":
        die()

def dying_replace(source, target):
    replace(source, target)
    if written == number and moment == "after":
        die()

def reporting_run(plans, task, options):
    print("begun", file=sys.stderr, flush=True)
    results = run_plans(plans, task, dataclasses.replace(options, checkpoint_every=0))
    print("done", file=sys.stderr, flush=True)
    return results

os.fsync, os.replace, runner.run_plans = dying_fsync, dying_replace, reporting_run
sys.argv = ["fewmore", *sys.argv[3:]]
main()
"""

SMALL = ["backbone=resnet8", "transform.size=16", "transform.resize=18"]
SMALL += ["pretrain.epochs=12", "pretrain.batch=16"]
SESSIONS = ["session.epochs=6"]  # of methods that train in a session
ADAMW = [
    f"{stage}.{setting}"
    for stage in ("pretrain", "session")
    for setting in ("optimizer=adamw", "lr=0.003", "warm_up=2", "ema=0.9")
]
EPISODES = [
    f"pseudo.{way}={value}"
    for way, value in (
        ("base_way", 3),
        ("new_way", 3),
        ("base_query", 4),
        ("new_query", 4),
        ("episodes", 100),
    )
]


@pytest.fixture
def images(tmp_path: Path, tiny_images: Callable[..., ImageSet]) -> Path:
    """Write a folder of eight classes with twelve small images each."""
    images = tiny_images(8, 12, size=24)
    for index in range(len(images)):
        folder = tmp_path / "images" / images.class_names[images.labels[index]]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = images.image(index).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "images"


@dataclass(frozen=True)
class Kill:
    """Say when a process dies: at a share of its usual time, or while it writes a file.

    Shares up to 1 are of the time of loading, from 1 to 2 of running.
    """

    share: float = 0.0
    file: int = 0  # counted from 1
    moment: str = ""  # partly (written), before or after (it is renamed)

    @classmethod
    def at_random(cls, generator: random.Random) -> "Kill":
        """Draw a kill."""
        if generator.random() < 0.3:
            moment = generator.choice(["partly", "before", "after"])
            return cls(file=generator.randint(1, 12), moment=moment)
        return cls(generator.uniform(0.8, 2.0))


@dataclass
class Trial:
    """Run one experiment in its own folder."""

    folder: Path
    images: Path
    method: str
    settings: list[str]

    def start(self, kill: Kill) -> subprocess.Popen[str]:
        """Start it, or resume it where a run has begun."""
        command = [
            "run",
            f"folder:{self.images}",
            "--method",
            self.method,
            "--recipe",
            "quick",
            "--runs",
            str(self.folder / "runs"),
        ]
        command += ["--base", "4", "--way", "2", "--shot", "3", "--device", "cpu"]
        command += [part for setting in self.settings for part in ("--set", setting)]
        command += ["--resume"] if any((self.folder / "runs").glob("*/config.json")) else []
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(kill.file), kill.moment, *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FEWMORE_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"},
        )

    def run(self) -> tuple[float, float]:
        """Run it to the end, and return the seconds of loading and of running."""
        times = [time.monotonic()]
        errors = []
        with self.start(Kill()) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.strip() in ("begun", "done"):
                    times.append(time.monotonic())
                else:
                    errors.append(line)
        assert process.returncode == 0, "".join(errors)
        assert len(times) == 3
        return times[1] - times[0], times[2] - times[1]

    def run_and_kill(self, kill: Kill, seconds: tuple[float, float]) -> None:
        """Start it and kill it, unless it ends before."""
        with self.start(kill) as process:
            assert process.stderr is not None
            if not kill.file:
                loading, running = seconds
                if kill.share > 1:
                    process.stderr.readline()  # "begun"
                    time.sleep((kill.share - 1) * running)
                else:
                    time.sleep(kill.share * loading)
                process.kill()
            errors = process.stderr.read()
        assert process.returncode in (-signal.SIGKILL, 0), errors

    @property
    def done(self) -> bool:
        """Say whether a run has ended."""
        return any((self.folder / "runs").glob("*/result.json"))

    @property
    def outcome(self) -> Path:
        """Return the one run folder that is complete."""
        (result,) = (self.folder / "runs").glob("*/result.json")
        return result.parent

    def state(self, name: str) -> State:
        """Read a state from the run folder."""
        return read_state(self.outcome / "seed0" / name)

    def metrics(self) -> list[dict[str, object]]:
        """Return the metrics of rounds and sessions, without seconds and shared stages."""
        text = (self.outcome / "seed0" / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        trained = [line for line in lines if "(shared)" not in str(line.get("stage"))]
        return [{key: value for key, value in line.items() if key != "seconds"} for line in trained]


def identical(one: object, other: object) -> bool:
    """Say whether two states are the same, bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    return one == other


def check(images: Path, method: str, settings: list[str], kills: Iterable[Kill]) -> None:
    """Check that an experiment killed at these moments ends as an undisturbed one."""
    undisturbed = Trial(images.parent / "undisturbed", images, method, settings)
    seconds = undisturbed.run()
    killed = Trial(images.parent / "killed", images, method, settings)
    in_time = 0
    for number, kill in enumerate(kills):
        if killed.done:  # it was faster than the kills: begin another one
            assert_same(undisturbed, killed)
            killed = replace(killed, folder=images.parent / f"killed{number}")
        killed.run_and_kill(kill, seconds)
        in_time += not killed.done
    if not killed.done:
        killed.run()
    assert_same(undisturbed, killed)
    assert in_time, "no kill came before the end"


def assert_same(undisturbed: Trial, killed: Trial) -> None:
    """Compare what two trials have learnt, predicted and reported."""
    for name in ("model.safetensors", "predictions.safetensors"):
        assert identical(undisturbed.state(name), killed.state(name)), f"{name} differs"
    one, other = (results.read(trial.outcome) for trial in (undisturbed, killed))
    assert one.accuracy == other.accuracy
    assert undisturbed.metrics() == killed.metrics()
    assert not [
        path.name for path in (killed.outcome / "seed0").iterdir() if path.name.startswith(".check")
    ]


def test_a_killed_run_ends_with_the_same_bits(images: Path) -> None:
    kills = [Kill(1.3), Kill(file=6, moment="partly"), Kill(1.6)]
    check(images, "finetune", [*SMALL, *SESSIONS], kills)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("finetune", SESSIONS),
        ("finetune", [*SESSIONS, *ADAMW]),
        ("decoupled-cosine", [*SESSIONS, "session.data_init=False"]),  # prototypes are trained
        ("joint", []),
        ("cec", EPISODES),
        ("eeil", SESSIONS),
        ("lucir", SESSIONS),
        ("topic", SESSIONS),
    ],
    ids=[
        "finetune",
        "finetune by adamw",
        "decoupled-cosine",
        "joint",
        "cec",
        "eeil",
        "lucir",
        "topic",
    ],
)
def test_a_run_killed_many_times_ends_with_the_same_bits(
    images: Path, method: str, settings: list[str]
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # shown where the test fails
    generator = random.Random(seed)
    kills = (Kill.at_random(generator) for _ in range(25))
    check(images, method, [*SMALL, *settings], kills)


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["partly", "before", "after"])
def test_a_run_killed_in_every_write_ends_with_the_same_bits(images: Path, moment: str) -> None:
    kills = (Kill(file=number, moment=moment) for number in range(1, 15))
    check(images, "finetune", [*SMALL, *SESSIONS], kills)
