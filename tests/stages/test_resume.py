"""The real thing: a run that is killed again and again ends with the same bits as one that was left alone.

The short form and the soak are the same code: `Trial.killed_until_done`. A process is killed from outside after a random
time, or kills itself in the middle of writing a file, which a random time would hardly ever meet.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cecil.evaluation import results
from cecil.stages.checkpoint import State, read_state

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill a process without its notice")

# `cecil` itself, but that it saves every round, says when it begins and ends, and may die while it writes a file.
PROGRAM = """
import os, signal, sys
from functools import partial
from cecil.cli import main
from cecil.evaluation import runner

number, moment = int(sys.argv[1]), sys.argv[2]  # which file, counted from 1, and when
fsync, replace, run = os.fsync, os.replace, runner.run
written = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying_fsync(file):
    global written
    written += 1
    fsync(file)
    if written == number and moment == "partly":
        os.ftruncate(file, os.fstat(file).st_size // 2)
        die()
    if written == number and moment == "before":
        die()

def dying_replace(source, target):
    replace(source, target)
    if written == number and moment == "after":
        die()

def told_run(*args, **options):
    print("begun", file=sys.stderr, flush=True)
    result = run(*args, checkpoint_every=0, **options)
    print("done", file=sys.stderr, flush=True)
    return result

os.fsync, os.replace, runner.run = dying_fsync, dying_replace, told_run
sys.argv = ["cecil", *sys.argv[3:]]
main()
"""

SMALL = ["backbone=resnet8", "transform.size=16", "transform.resize=18"]
SHORT = ["pretrain.epochs=12", "pretrain.batch=16", "pretrain.milestones=8,10", "session.epochs=6"]
EPISODES = [f"pseudo.{way}={value}" for way, value in (("base_way", 3), ("new_way", 3), ("base_query", 4), ("new_query", 4), ("episodes", 250))]


def make_pictures(folder: Path) -> None:
    """Eight classes of twelve small pictures."""
    noise = np.random.default_rng(0)
    for number in range(8):
        (folder / f"class{number}").mkdir(parents=True)
        colour = np.array([60, 190])[[number & 1, number >> 1 & 1, number >> 2]]
        for picture in range(12):
            pixels = (colour + noise.normal(0, 40, (24, 24, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{number}" / f"{picture}.png")


@dataclass
class Trial:
    """One experiment, in a folder of its own."""

    folder: Path
    pictures: Path
    method: str
    settings: list[str]

    def start(self, resume: bool, number: int = 0, moment: str = "") -> subprocess.Popen[str]:
        command = ["run", f"folder:{self.pictures}", "--method", self.method, "--recipe", "quick", "--runs", str(self.folder / "runs")]
        command += ["--base", "4", "--way", "2", "--shot", "3", "--device", "cpu"]
        command += [part for setting in self.settings for part in ("--set", setting)]
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(number), moment, *command, *(["--resume"] if resume else [])],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "CECIL_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )

    @property
    def begun(self) -> bool:
        """Whether there is something that --resume can find."""
        return any((self.folder / "runs").glob("*/config.json"))

    @property
    def done(self) -> bool:
        return any((self.folder / "runs").glob("*/result.json"))

    def run(self) -> float:
        """To the end; returns the seconds between "begun" and "done"."""
        process = self.start(self.begun)
        seconds, lines = self._wait_for(process, "begun"), []
        began = time.monotonic()
        seconds = self._wait_for(process, "done", lines) - began
        process.communicate()
        assert process.returncode == 0, "".join(lines)
        return seconds

    def killed_until_done(self, kills: int, seconds: float, dice: random.Random) -> None:
        """Kill it this many times at random moments, starting it again each time, then let it end."""
        for _ in range(kills):
            if self.done:
                break
            if dice.random() < 0.3:
                process = self.start(self.begun, dice.randint(1, 12), dice.choice(["partly", "before", "after"]))
            else:
                process = self.start(self.begun)
                if dice.random() < 0.9:  # else it dies while it is still loading
                    self._wait_for(process, "begun")
                time.sleep(dice.uniform(0, seconds))
                process.kill()
            _, errors = process.communicate()
            assert process.returncode in (-signal.SIGKILL, 0), errors
        if not self.done:
            self.run()

    @staticmethod
    def _wait_for(process: subprocess.Popen[str], word: str, lines: list[str] | None = None) -> float:
        """Read the process's messages up to this word, or to their end."""
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip() == word:
                break
            if lines is not None:
                lines.append(line)
        return time.monotonic()

    @property
    def outcome(self) -> Path:
        """The one run folder that came to an end."""
        (result,) = (self.folder / "runs").glob("*/result.json")
        return result.parent

    def state(self, name: str) -> State:
        return read_state(self.outcome / "seed0" / name)

    def metrics(self) -> list[dict[str, object]]:
        """What was told of every round and session, without times and without what came from another run."""
        lines = [json.loads(line) for line in (self.outcome / "seed0" / "metrics.jsonl").read_text().splitlines()]
        return [
            {key: value for key, value in line.items() if key != "seconds"} for line in lines if "(shared)" not in str(line.get("stage", ""))
        ]


def identical(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    return one == other


def check(tmp_path: Path, method: str, settings: list[str], kills: int, seed: int) -> None:
    make_pictures(tmp_path / "pictures")
    alone, killed = (Trial(tmp_path / name, tmp_path / "pictures", method, settings) for name in ("alone", "killed"))
    seconds = alone.run()
    killed.killed_until_done(kills, seconds, random.Random(seed))
    for name in ("model.safetensors", "predictions.safetensors"):
        assert identical(alone.state(name), killed.state(name)), f"{name} differs; seed {seed}"
    (one,), (other,) = (results.read(trial.outcome).runs for trial in (alone, killed))
    assert one.summary.accuracy.tolist() == other.summary.accuracy.tolist()
    assert alone.metrics() == killed.metrics()
