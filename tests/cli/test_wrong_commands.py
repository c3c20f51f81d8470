"""Test that a wrong command gets one sentence and exit code 2, and changes nothing."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Fewmore = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parents[2]

METHODS = """
from fewmore.methods.base import Method

class Abstract(Method):
    pass

class Other:
    pass
"""

# Each command, and words of the sentence that it must get.
WRONG = {
    # run: benchmarks
    "run cifar10 -m cec": "did you mean cifar100?",
    "run photos -m cec": "type folder:photos",
    "run folder:nowhere -m cec": "nowhere is not there",
    "run folder: -m cec": "names no folder",
    "run folder:empty -m cec": "make one sub-folder a class",
    "run cifar100 -m cec --data-root nowhere": "fewmore data get cifar100",
    "run miniimagenet -m cec --data-root nowhere": "fewmore data get miniimagenet",
    "run cub200 -m cec --data-root nowhere": "fewmore data get cub200",
    "run nowhere.json -m cec": "nowhere.json",
    "run damaged.json -m cec": "damaged.json is not JSON",
    "run config.json -m cec": "'folder' and 'benchmark'",
    "run sessions.json -m cec": "'okapi'",
    # run: methods
    "run folder:photos -m cecc": "did you mean cec",
    "run folder:photos -m ''": "no method is named ''",
    "run folder:photos -m cec,": "no method is named ''",
    "run folder:photos -m nowhere.py:Mine": "there is no file nowhere.py",
    "run folder:photos -m broken.py:Mine": "SyntaxError",
    "run folder:photos -m methods.py:Mine": "there are: Abstract",
    "run folder:photos -m methods.py:Abstract": "does not implement fit, learn",
    "run folder:photos -m methods.py:Other": "is not a Method",
    "run folder:photos -m no.such.module:Mine": "no method is named 'no.such.module:Mine'",
    # run: settings
    "run folder:photos -m cec --recipe fast": "there are: mild, official, paper, quick",
    "run folder:photos -m cec --set pretrain.epoch=3": "did you mean epochs?",
    "run folder:photos -m cec --set pretrain.epochs": "write it as name=value",
    "run folder:photos -m cec --set pretrain.epochs=many": "'many' is not a whole number",
    "run folder:photos -m cec --set pretrain.epochs=0": "epochs must be at least 1",
    "run folder:photos -m cec --set pretrain.lr=-1": "lr must be a number of at least 0",
    "run folder:photos -m cec --set pretrain.optimizer=adam": "is not sgd or adamw",
    "run folder:photos -m cec --set backbone=resnet9": "did you mean resnet8",
    "run folder:photos -m cec --set weights=nowhere.pth": "there is no weight file nowhere.pth",
    "run folder:photos -m cec --set transform.size=0": "size must be at least 1",
    "run folder:photos -m cec --set transform.test_views=upside-down": "plain, flip",
    "run folder:photos -m decoupled-cosine --set pseudo.episodes=2": "no setting is named 'pseudo'",
    # run: splits, devices, places
    "run folder:photos -m cec --base 99": "use --base 6 or less",
    "run folder:photos -m cec --base 0": "base must be at least 1",
    "run folder:photos -m cec --way 0": "way must be at least 1",
    "run folder:photos -m cec --base 3 --way 2": "use --way 1",
    "run folder:photos -m cec --shot 99": "lower --shot",
    "run folder:photos -m cec --shot 0": "shot must be at least 1",
    "run folder:photos -m cec --seeds 2 --seed 1": "keep one of them",
    "run folder:photos -m cec --draws 2 --draw 1": "keep one of them",
    "run folder:photos -m cec --device tpu": "use cpu, cuda or mps",
    "run folder:photos -m cec --device cuda:99": "PyTorch sees",
    "run folder:photos -m cec --precision fp12": "one of fp32, tf32, bf16, fp16",
    "run folder:photos -m cec --runs text.txt": "give another place for run folders with --runs",
    "run folder:photos -m cec --record text.txt": "--record text.txt cannot be made",
    "run folder:photos -m cec --log nowhere": "no logger is named 'nowhere'",
    "run --config nowhere.json": "cannot be read",
    "run --config text.txt": "text.txt is not JSON",
    "run --config birds.fewmore": "give the config.json of a run folder",
    "run --config config.json": "give the config.json of a run folder",
    "run --config config.json --seed 1": "says what is run",
    # compare and report
    "compare nowhere": "nowhere is not there",
    "compare runs/empty": "there is no finished run to compare",
    "compare text.txt": "text.txt is not JSON",
    "compare damaged.json": "damaged.json is not JSON",
    "compare newer.json": "upgrade with pip install -U fewmore",
    "compare birds.fewmore": "cannot be read as text",
    "compare result.json --csv --latex": "keep one of them",
    "compare result.json --all-published --no-published": "keep one of them",
    "compare result.json --plot figure.bmp": "use --plot figure.png",
    "compare result.json --reference cec": "--paired",
    "compare result.json --paired": "a difference needs two results",
    "compare result.json --paired --reference topic": "there are: cec",
    "report nowhere": "nowhere is not a folder",
    "report text.txt": "text.txt is not a folder",
    "report runs/empty": "has no result.json",
    "report runs/lost": "give a folder as fewmore run wrote it",
    # exam, settings, reproduce, data, tune
    "exam cecc": "did you mean cec",
    "exam broken.py:Mine": "SyntaxError",
    "exam methods.py:Abstract": "does not implement",
    "settings cecc": "did you mean cec",
    "settings cec --recipe fast": "no recipe is named 'fast'",
    "settings cec --benchmark cifar10": "did you mean cifar100?",
    "reproduce table9": "no study is named 'table9'",
    "reproduce confusion --benchmark cifar10": "did you mean cifar100?",
    "reproduce confusion --skip topic": "--skip",
    "reproduce confusion --quick --recipe official": "keep one of them",
    "reproduce confusion --benchmark cifar100 --data-root nowhere": "fewmore data get cifar100",
    "data get cifar10": "did you mean cifar100?",
    "data check cifar10": "did you mean cifar100?",
    "data check cifar100 --data-root nowhere": "fewmore data get cifar100",
    "data check folder:nowhere": "nowhere is not there",
    "tune glyphs -m cecc --grid pretrain.lr=0.1": "did you mean cec",
    "tune glyphs -m cec": "there is nothing to try",
    "tune glyphs -m cec --grid pretrain.lr": "write it as name=value",
    "tune glyphs -m cec --grid pretrain.lr=fast": "'fast' is not a number",
    "tune glyphs -m cec --grid pretrain.rate=0.1": "no setting of pretrain is named 'rate'",
    "tune glyphs -m cec --range pretrain.lr=0.1..0.01 --random 3": "from a smaller number",
    "tune glyphs -m cec --range pretrain.lr=0.01..0.1": "--random",
    "tune glyphs -m cec --grid pretrain.lr=0.1 --by luck": "no measure is named 'luck'",
    # model files
    "train nowhere": "nowhere is not there",
    "train empty": "make one sub-folder a class",
    "train text.txt": "text.txt is a file, not a folder",
    "train photos -o birds.fewmore": "replace it with --force",
    "train photos -o no/such/folder.fewmore": "there is no folder no/such",
    "train photos -o new.fewmore --backbone resnet9": "no backbone with ImageNet weights is named",
    "train photos -o new.fewmore --weights nowhere.pth": "there is no weight file nowhere.pth",
    "train photos -o new.fewmore --fine-tune 10": "type --fine-tune 10m for minutes, or 10s",
    "train photos -o new.fewmore --device gpu": "there is no such device): take auto, cpu",
    "train photos -o new.fewmore --engine touch": "did you mean torch",
    "learn nowhere.fewmore photos": "there is no model file nowhere.fewmore",
    "learn text.txt photos": "not a model file",
    "learn birds.fewmore nowhere": "nowhere is not there",
    "learn birds.fewmore --name okapi text.txt": "some text is not there",
    "learn birds.fewmore --name okapi broken.py": "cannot be read as an image",
    "card nowhere.fewmore": "there is no model file nowhere.fewmore",
    "repair nowhere.fewmore": "there is no model file nowhere.fewmore",
    "repair text.txt": "not a model file",
    "check nowhere": "nowhere is not there",
    "check text.txt": "not a model file",
    "predict birds.fewmore image.png -o text.txt": "does not end in .csv, .json, .jsonl or",
    "predict birds.fewmore image.png -o no/such/a.csv": "-o no/such/a.csv cannot be written",
    "predict birds.fewmore image.png --sort-into text.txt": "text.txt: image.png cannot be",
    "evaluate birds.fewmore photos --unknown empty": "empty has no images in it",
    "predict birds.fewmore image.png -o no/such/a.parquet": "no/such/a.parquet",
    "predict birds.fewmore s4://bucket -o a.parquet": "s4://bucket cannot be read",
    "predict birds.fewmore image.png --engine touch": "did you mean torch",
    "predict birds.fewmore image.png -o .": "use -o new.csv",
    "predict birds.fewmore image.png -o /": "use -o /new.csv",
    "embed birds.fewmore image.png -o .": "use -o new.parquet",
    "embed birds.fewmore image.png -o a.csv": "use -o a.parquet",
    "embed birds.fewmore empty -o a.parquet": "empty has no images in it",
    "embed birds.fewmore gone.tar -o a.parquet": "gone.tar cannot be read",
    "predict photos birds.fewmore": "comes first: type fewmore predict birds.fewmore photos",
    "predict image.png text.txt birds.fewmore": "type fewmore predict birds.fewmore image.png",
    "embed photos birds.fewmore -o a.parquet": "type fewmore embed birds.fewmore photos",
    "evaluate photos birds.fewmore": "type fewmore evaluate birds.fewmore photos",
    "learn photos birds.fewmore": "type fewmore learn birds.fewmore photos",
    "predict nowhere.fewmore image.png": "there is no model file nowhere.fewmore",
    "predict text.txt image.png": "not a model file",
    "predict birds.fewmore image.png --csv --json": "keep one of them",
    "evaluate nowhere.fewmore photos": "there is no model file nowhere.fewmore",
    "evaluate birds.fewmore nowhere": "nowhere is not there",
    "evaluate birds.fewmore empty": "make one sub-folder a class",
    "evaluate birds.fewmore photos --plot figure.bmp": "use --plot figure.png",
    "info nowhere.fewmore": "there is no model file nowhere.fewmore",
    "info damaged.json": "not a model file",
    "forget birds.fewmore okapi": "no class is named 'okapi'",
    "rename birds.fewmore okapi zebra": "no class is named 'okapi'",
    "undo nowhere.fewmore": "there is no model file nowhere.fewmore",
    "export nowhere.fewmore --onnx new": "there is no model file nowhere.fewmore",
    "export birds.fewmore": "say what to write: --onnx birds.onnx",
    "export birds.fewmore --onnx text.txt": "use --onnx text.onnx for one file",
    "export birds.fewmore --onnx nowhere/birds.onnx": "there is no folder nowhere",
    "export birds.fewmore --onnx own.onnx": "own.onnx is there already, and fewmore did not",
    "export birds.fewmore --onnx photos": "photos has files that fewmore did not export",
    "export birds.fewmore --web .": "give a new or an empty folder, such as export",
    "export birds.fewmore --onnx new.onnx --web photos": "such as photos/export",
    "export birds.fewmore --onnx new --int8 photos": "--int8 is for one file or a web page",
    "export birds.fewmore --onnx new --web page --int8 photos": "--onnx new is no .onnx file",
    "export birds.fewmore --onnx new.onnx --int8 nowhere": "nowhere",
    "serve": "give a model file",
    "serve nowhere.fewmore": "there is no model file nowhere.fewmore",
    "serve text.txt": "not a model file",
    "serve birds.fewmore --token x": "at least 16 characters",
}

# Words that are missing or that no command knows: the usage is printed too.
USAGE = {
    "run": "Missing argument 'BENCHMARK'",
    "run folder:photos": "Missing option '--method'",
    "run folder:photos -m cec --seeds 0": "'--seeds'",
    "run folder:photos -m cec --parallel none": "'--parallel'",
    "run folder:photos -m cec --colour": "No such option: --colour",
    "compare": "Missing argument",
    "report": "Missing argument",
    "exam": "Missing argument",
    "settings": "Missing argument",
    "reproduce": "Missing argument",
    "data clean": "No such command 'clean'",
    "doctor please": "Got unexpected extra argument",
    "tune glyphs": "Missing option '--method'",
    "learn birds.fewmore --name okapi": "Missing argument",
    "predict birds.fewmore": "Missing argument",
    "predict birds.fewmore image.png --top 0": "'--top'",
    "serve birds.fewmore --port 99999": "'--port'",
    "fly": "No such command 'fly'",
}


@pytest.fixture(scope="module")
def world(
    tiny_folder: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """Return the content of files by name: photos, a model, results, and files of other kinds."""
    result = (ROOT / "results" / "cifar100-cec.json").read_bytes()
    sessions = {"folder": "photos", "sessions": [{"classes": ["okapi"]}]}
    photos = {
        f"photos/{path.relative_to(tiny_folder).as_posix()}": path.read_bytes()
        for path in tiny_folder.rglob("*.png")
    }
    return {
        **photos,
        "image.png": next(iter(photos.values())),
        "birds.fewmore": small_model.read_bytes(),
        "text.txt": b"some text\n",
        "damaged.json": b'{"schema": 1, "meth',
        "newer.json": b'{"schema": 99}',
        "config.json": b"{}",
        "sessions.json": json.dumps(sessions).encode(),
        "result.json": result,
        "broken.py": b"def (:\n",
        "methods.py": METHODS.encode(),
        "own.onnx": b"a graph",
        "empty/.hidden": b"",
        "runs/empty/.hidden": b"",
        "runs/lost/result.json": result,
    }


@pytest.fixture
def place(world: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files into a folder, and go there."""
    folder = tmp_path / "world"
    for name, content in world.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEWMORE_DATA", raising=False)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def check_sentence(outcome: tuple[int, str, str], words: str) -> None:
    code, _, err = outcome
    assert code == 2
    assert err.startswith("fewmore: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert words in err


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_gets_a_sentence_and_changes_nothing(
    command: str,
    place: Path,
    world: dict[str, bytes],
    fewmore: Fewmore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    check_sentence(fewmore(*shlex.split(command)), WRONG[command])
    assert files(place) == world
    assert not list(place.glob("runs/*/seed*")), "no run has begun"


@pytest.mark.parametrize("command", USAGE)
def test_wrong_words_get_the_usage_and_change_nothing(
    command: str,
    place: Path,
    world: dict[str, bytes],
    fewmore: Fewmore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    code, _, err = fewmore(*shlex.split(command))
    assert code == 2
    assert err.startswith("Usage: ")
    assert "Traceback" not in err
    assert USAGE[command] in " ".join(err.split())
    assert files(place) == world


@pytest.mark.parametrize(
    "command",
    ["run folder:photos -m cec --base 99", "compare damaged.json", "rename birds.fewmore okapi a"],
)
def test_a_wrong_command_in_a_shell(command: str, place: Path, world: dict[str, bytes]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fewmore", *shlex.split(command)],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=120,
    )
    check_sentence((done.returncode, done.stdout, done.stderr), "")
    assert files(place) == world


def test_there_are_many_commands_and_none_is_left_out() -> None:
    from fewmore.cli import GROUPS

    assert len(WRONG) >= 40
    tested = {command.split()[0] for command in (*WRONG, *USAGE)}
    known = {command.__name__ for commands in GROUPS.values() for command in commands}
    lists = {"benchmarks", "methods"}  # these take no words
    assert known - lists <= tested
