"""Create and find run folders.

runs/<benchmark>-<method>-<time>/
    config.json              the experiment
    code.json                files and hashes of a user's own method, features, benchmark or images
    result.json              its result, once all runs are done
    run.lock                 there while a process runs it
    report.html              the result on one page
    per-class.csv            the accuracy of each class, and what it is taken for
    figures/                 accuracy by session, base against novel, the confusion matrix
    seed0/ or seed0-draw1/   one folder a run:
        metrics.jsonl            every round and session, as it happens
        checkpoint.safetensors   the state that a killed run resumes from
        predictions.safetensors  the predicted class of every test image after every session
        model.safetensors        the trained model
        error.txt                the traceback, where the method failed by an error of its own
        session0/ …              on request, one folder a session:
            model.safetensors        the model after the session
            scores.npz               the scores of the test images after the session
"""

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path

from filelock import FileLock, Timeout

from fewmore.errors import CheckpointError, DataError, MissingData
from fewmore.io import write_bytes
from fewmore.research.experiment import Experiment
from fewmore.research.own_code import (
    BENCHMARK,
    Sources,
    own_code,
    same_code,
    with_recorded_files,
)

CONFIG = "config.json"
CODE = "code.json"
RESULT = "result.json"
MODEL = "model.safetensors"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
ERROR = "error.txt"
LOCK = "run.lock"  # there while a process runs what the folder holds


def ensure_parent(runs: Path) -> None:
    """Create the folder that run folders go into, or say why it cannot be."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_create(runs, error) from error


def create(runs: Path, experiment: Experiment, method: str = "") -> Path:
    """Create a run folder for an experiment, with its config in it.

    Its name holds that of the method, which is `method` where the class has a name of its own.
    """
    benchmark = re.sub(r"[:/\\]", "-", experiment.benchmark)
    method = method or Path(experiment.method).stem
    own_code(experiment)  # an error in it leaves no folder behind
    stem = f"{benchmark}-{method}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        folder = runs / (stem + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_create(folder, error) from error
        write_config(folder, experiment)
        return folder
    raise CheckpointError(f"no name is left for a run folder {runs / stem}")


def write_config(folder: Path, experiment: Experiment) -> None:
    """Write what is run into a folder: the settings, and hashes of a user's own code."""
    write_bytes(folder / CONFIG, experiment.to_json().encode())
    if code := own_code(experiment):
        write_bytes(folder / CODE, json.dumps(code, indent=1).encode())


def _cannot_create(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{folder} cannot be made ({error.strerror}): "
        "give another place for run folders with --runs"
    )


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Let one process at a time run what a folder holds; one that is killed holds no lock."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise CheckpointError(
            f"{folder} is being run by another process: wait until it is done, or give another "
            "place for run folders with --runs"
        ) from None
    except (OSError, NotImplementedError):
        pass  # a file system without locks
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):
            (folder / LOCK).unlink()


def discard_unused(folder: Path) -> None:
    """Remove a run folder in which nothing was written but the config and what goes with it."""
    if {path.name for path in folder.rglob("*") if path.is_file()} <= {CONFIG, CODE, LOCK}:
        shutil.rmtree(folder)


def session_folder(run: Path, session: int) -> Path:
    """Return the folder of a session in that of a run; it is there on request alone."""
    return run / f"session{session}"


def is_finished(folder: Path) -> bool:
    """Return whether a run folder holds a result."""
    return (folder / RESULT).exists()


def find(
    runs: Path, experiments: Sequence[Experiment], prefer_finished: bool = True
) -> list[Path | None]:
    """Find the newest folder of each experiment, or None.

    Where an experiment has several, finished ones go before unfinished ones, or the other way
    round. One that was begun before a user's file was edited is another experiment.
    """
    configs = _configs(runs)

    def newest(experiment: Experiment) -> Path | None:
        config = _parse(experiment.to_json())
        candidates = [
            folder for folder, known in configs if known == config and _has_code(folder, experiment)
        ]
        return min(
            candidates, key=lambda folder: is_finished(folder) != prefer_finished, default=None
        )

    return [newest(experiment) for experiment in experiments]


def find_of_other_code(runs: Path, experiment: Experiment) -> list[Path]:
    """Return the folders of an experiment that were begun before a user's file was edited."""
    config = _parse(experiment.to_json())
    return [
        folder
        for folder, known in _configs(runs)
        if known == config and not _has_code(folder, experiment)
    ]


def _configs(runs: Path) -> list[tuple[Path, object]]:
    """Return all run folders and what their configs say, the newest first."""
    found = []
    for path in runs.glob(f"*/{CONFIG}"):
        with suppress(FileNotFoundError):  # another process removes it meanwhile
            content = path.read_bytes()
            found.append((path.stat().st_mtime, path.parent, _parse(content)))
    found.sort(key=itemgetter(0), reverse=True)
    return [(folder, config) for _, folder, config in found]


def _parse(config: str | bytes) -> object:
    """Return what a config.json says, in which settings may have another order; None if damaged."""
    try:
        return json.loads(config)
    except ValueError:
        return None


def read_code(folder: Path) -> Sources | None:
    """Return which files of a user's own code a run was begun with; None where it is not known."""
    path = folder / CODE
    if not path.exists():
        return None
    try:
        sources: Sources = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON ({error}): restore it, or run again into another folder"
        ) from None
    return sources


def _has_code(folder: Path, experiment: Experiment) -> bool:
    try:
        recorded = read_code(folder)
    except DataError:  # of which code it is, is not known
        return False
    return recorded is None or same_code(recorded, own_code(experiment))


def read_experiment(config: Path) -> Experiment:
    """Read the experiment of a run folder's config.json, with the user's files it was run with."""
    text = config.read_text(encoding="utf-8")
    recorded = read_code(config.parent)
    if recorded:
        text = with_recorded_files(text, recorded)
    return Experiment.from_json(text, str(config))


def check_benchmark(config: Path, experiment: Experiment) -> None:
    """Refuse a user's benchmark that is not the one that a run folder's config was written for."""
    recorded = (read_code(config.parent) or {}).get(BENCHMARK)
    found = own_code(experiment).get(BENCHMARK)
    if recorded and found and found["sha256"] != recorded["sha256"]:
        raise MissingData(
            f"{experiment.benchmark} is not the benchmark that this run was made with, which was "
            f"{recorded['file']}: put back its files as they were then"
        )
