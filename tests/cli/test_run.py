"""Test `fewmore run`, `fewmore methods` and `fewmore benchmarks`."""

import csv
import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from fewmore import cli
from fewmore.cli.experiments import experiments_of
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import ConfigError, MethodError, MissingData
from fewmore.io import file_hash
from fewmore.methods import FEATURES, METHODS
from fewmore.research import job, results, runner
from fewmore.research.trained import load_method

SMALL = (
    "backbone=resnet8",
    "transform.size=8",
    "transform.resize=9",
    "pretrain.epochs=2",
    "pretrain.batch=10",
    "session.epochs=2",
)

NEAREST = '''
"""Nearest mean image: the simplest method that there is."""

import torch

from fewmore.methods.base import Method


class Nearest(Method):
    """The class whose mean image is nearest, pixel by pixel."""

    def fit(self, base):
        self.means = self._means(base)

    def learn(self, session):
        self.means = torch.cat([self.means, self._means(session)])

    def scores(self, images):
        return -torch.cdist(self._pixels(images), self.means)

    def state(self):
        return {"means": self.means}

    def restore(self, state):
        self.means = state["means"]

    def _pixels(self, images):
        return torch.stack([images.image(i).flatten().float() for i in range(len(images))])

    def _means(self, images):
        pixels = self._pixels(images)
        classes = range(len(images.class_names))
        return torch.stack([pixels[images.labels == c].mean(0) for c in classes])
'''


TOO_FEW = NEAREST.replace(
    "from fewmore.methods.base import Method\n",
    """from dataclasses import dataclass

from fewmore.errors import ConfigError
from fewmore.methods.base import Method, MethodConfig


@dataclass(frozen=True)
class Config(MethodConfig):
    def fitted(self, counts):
        raise ConfigError(f"9 base classes are needed, not {len(counts)}")
""",
).replace("class Nearest(Method):", "class Few(Method):\n    config_type = Config\n")


@pytest.fixture
def run(fewmore, tiny_folder):
    """Return `fewmore run` on a folder of images, with a small network."""

    def run(*words: object, small: bool = True) -> tuple[int, str, str]:
        # Of these methods, Nearest alone has no setting of sessions.
        names = SMALL[:-1] if "near.py:Nearest" in words else SMALL
        settings = [word for name in names for word in ("--set", name)] if small else []
        return fewmore("run", f"folder:{tiny_folder}", "--device", "cpu", *settings, *words)

    return run


def refusal(outcome: tuple[int, str, str]) -> str:
    """Return the message of a refused command: one line on stderr, no traceback, exit code 2."""
    code, _, err = outcome
    assert code == 2
    assert err.startswith("fewmore: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def folders(place: Path = Path("runs")) -> list[Path]:
    return sorted(path.parent for path in place.glob("*/config.json"))


# Runs


def test_a_run_prints_its_table_and_writes_its_folder(run, tiny_folder):
    code, out, err = run("--method", "decoupled-cosine")
    assert (code, err) == (0, "")
    assert "decoupled-cosine on folder:" in out
    assert (
        "30 training and 6 test images; 4 base classes, then 1 session of 2-way 5-shot (draw 0)"
        in out
    )
    (folder,) = folders()
    result = results.read(folder)
    last = f"{result.accuracy[0][-1]:.2f}"
    assert f"seed0 session 1: {last} %" in out
    assert str(folder) in out
    table = out.partition("run folder")[2]
    assert "decoupled-cosine" in table
    assert last in table
    assert sorted(path.name for path in folder.iterdir()) == [
        "code.json",
        "config.json",
        "figures",
        "per-class.csv",
        "report.html",
        "result.json",
        "seed0",
    ]
    assert {path.name for path in (folder / "figures").glob("*.png")} == {
        "sessions.png",
        "base-novel.png",
        "confusion.png",
    }
    assert result.benchmark == f"folder:{tiny_folder}"
    assert result.command.startswith("fewmore run folder:")
    assert result.settings["backbone"] == "resnet8"
    config = json.loads((folder / "config.json").read_text())
    assert config["recipe"]["pretrain"]["epochs"] == 2


def test_several_methods_share_stage_1_and_a_table(run):
    code, out, _ = run("-m", "decoupled-linear,linear", "-m", "decoupled-l2", "--record", "kept")
    assert code == 0
    assert len(folders()) == 3
    assert len(list(Path("cache/stage1").glob("*.safetensors"))) == 1
    lines = [
        line
        for folder in folders()
        for line in (folder / "seed0" / "metrics.jsonl").read_text().splitlines()
    ]
    stages = [json.loads(line).get("stage") for line in lines]
    assert stages.count("pretrain") == 2, "two epochs of one method"
    assert stages.count("pretrain (shared)") == 2, "two methods took it over"
    table = out.rpartition("run folder")[2]
    assert all(name in table for name in ("decoupled-linear", "linear", "decoupled-l2"))
    assert (
        "2 runs took over stage 1 from another run; the seconds of training it are included"
        in table
    )
    assert len(list(Path("kept").glob("*.json"))) == 3


def test_several_methods_run_side_by_side(run):
    methods = ("-m", "decoupled-linear,linear", "-m", "decoupled-l2", "--fresh")
    code, _, err = run(*methods)
    assert (code, err) == (0, "")
    code, out, err = run(*methods, "--parallel", "3", "--runs", "together")
    assert (code, err) == (0, "")
    first = " ".join(out.split())
    assert first.startswith("decoupled-linear, linear, decoupled-l2 on folder:")
    assert "recipe official, resnet8, 3 runs, cpu" in first
    table = out.rpartition("run folder")[2]
    assert all(name in table for name in ("decoupled-linear", "linear", "decoupled-l2"))
    together = {r.method: r for r in map(results.read, Path("together").iterdir())}
    assert all(result.machine["side_by_side"] == 3 for result in together.values())
    for in_turn in map(results.read, folders()):
        assert together[in_turn.method].accuracy == in_turn.accuracy


def test_methods_on_several_features_are_one_table(run, fewmore):
    code, out, _ = run(
        "-m", "decoupled-cosine,teen", "--features", "cec,closer", "--record", "kept"
    )
    assert code == 0
    table = " ".join(out.rpartition("run folder")[2].split())
    for name in ("decoupled-cosine", "decoupled-cosine, features=closer", "teen, features=cec"):
        assert name in table
    shared = list(Path("cache/stage1").glob("*.safetensors"))
    assert len(shared) == 2, "one for each of the features"
    names = [path.stem for path in Path("kept").iterdir()]
    for part in ("-decoupled-cosine-closer-", "-teen-closer-", "-teen-cec-"):
        assert sum(part in name for name in names) == 1
    [folder] = Path("runs").glob("*-teen-closer-*")
    assert results.read(folder).settings["features"] == "closer"
    code, out, _ = fewmore("run", "--config", folder / "config.json", "--dry-run")
    assert code == 0
    assert "features=closer" in out


def test_unknown_features_are_refused(run):
    sentence = refusal(run("-m", "cec", "--features", "closr"))
    assert "no feature recipe is named 'closr': did you mean closer" in sentence


def test_every_folder_of_runs_can_be_compared(run, fewmore):
    assert run("-m", "decoupled-l2,linear")[0] == 0
    code, out, err = fewmore("compare", *Path("runs").iterdir())
    assert (code, err) == (0, "")
    assert all(name in out for name in ("decoupled-l2", "linear"))


def test_a_cache_that_cannot_be_made_is_a_sentence(run, monkeypatch):
    Path("file").touch()
    monkeypatch.setenv("FEWMORE_CACHE", "file")
    code, _, err = run("-m", "linear")
    assert code == 2
    assert "set FEWMORE_CACHE to another folder" in err


def test_all_methods_are_those_of_the_table_each_once(run, monkeypatch):
    monkeypatch.setattr(
        "fewmore.methods.METHODS",
        {name: METHODS[name] for name in ("decoupled-l2", "decoupled-linear")},
    )
    assert run("-m", "all", "-m", "decoupled-l2")[0] == 0
    assert sorted(results.read(folder).method for folder in folders()) == [
        "decoupled-l2",
        "decoupled-linear",
    ]


def test_episodes_are_fitted_to_a_small_base_session_and_recorded(run):
    common = [word for name in SMALL[:-1] for word in ("--set", name)]
    words = ("-m", "cec", *common, "--set", "pseudo.episodes=2")
    sizes = {"base_way": 4, "base_query": 4, "new_way": 4, "new_query": 4}
    settings = {f"pseudo.{name}": str(size) for name, size in sizes.items()}
    code, out, err = run(*words, small=False)
    assert (code, err) == (0, "")
    assert "pseudo.base_way=4" in out
    assert "because the base session has 4 classes with 5 images or more" in out
    (folder,) = folders()
    config = json.loads((folder / "config.json").read_text())
    assert config["recipe"]["method"]["pseudo"].items() >= sizes.items()
    assert results.read(folder).settings.items() >= settings.items()
    plan = run(*words, "--resume", "--dry-run", small=False)[1]
    assert f"folder    {folder}, which is finished" in plan
    assert "pseudo.base_way=4" in plan
    other = run(*words, "--seed", 3, "--resume", "--dry-run", small=False)[1]
    assert "folder    a new one in runs" in other
    (folder / "result.json").unlink()
    assert run(*words, "--resume", small=False)[0] == 0
    assert folders() == [folder], "a fitted run is found again"


def test_a_method_that_fails_does_not_stop_the_others(run):
    wrong = NEAREST.replace("return -torch.cdist", "return torch.nan * torch.cdist")
    Path("near.py").write_text(wrong)
    Path("few.py").write_text(TOO_FEW)
    Path("boom.py").write_text(
        NEAREST.replace("self._means(base)", "base.none").replace("st(M", "stBoom(M")
    )
    Path("unfit.py").write_text(
        TOO_FEW.replace("raise ConfigError(", "raise ValueError(").replace("Few", "Unfit")
    )
    methods = (
        *("-m", "few.py:Few", "-m", "unfit.py:Unfit", "-m", "near.py:Nearest"),
        *("-m", "boom.py:NearestBoom", "-m", "decoupled-cosine"),
    )
    code, out, err = run(*methods)
    assert code == 2
    assert "fewmore: few.py:Few: 9 base classes are needed, not 4" in err
    assert "fewmore: near.py:Nearest: Nearest gave scores that are not finite" in err
    assert "fewmore: unfit.py:Unfit: the settings of unfit.py:Unfit cannot be fitted" in err
    assert "ValueError: 9 base classes are needed, not 4 (" in err
    assert "fewmore: boom.py:NearestBoom: nearestboom fails in the base session of seed0: " in err
    assert "AttributeError: 'ImageSet' object has no attribute 'none' (" in err
    assert err.count("\n") == 4
    assert "Traceback" not in err
    assert "decoupled-cosine" in out.rpartition("run folder")[2]
    assert [results.read(f).method for f in folders() if (f / "result.json").exists()] == [
        "decoupled-cosine"
    ]


def test_images_are_stored_at_the_size_that_the_recipe_needs(run, monkeypatch):
    tasks = []
    load = runner.loading.load_task
    monkeypatch.setattr(
        runner.loading, "load_task", lambda *a, **k: tasks.append(load(*a, **k)) or tasks[-1]
    )
    assert run("-m", "decoupled-cosine")[0] == 0
    assert run("-m", "decoupled-cosine", "--set", "transform.resize=11")[0] == 0
    assert [task.train.size for task in tasks] == [(9, 9), (11, 11)], "the files have 12 pixels"


def test_images_of_a_method_do_not_depend_on_what_else_is_run(run):
    """One method needs larger images than the other, of which both are made without it."""
    several = ("-m", "decoupled-cosine,decoupled-l2", "--set", "decoupled-l2.transform.stored=12")
    assert run(*several)[0] == 0
    assert run("-m", "decoupled-cosine", "--runs", "alone")[0] == 0
    both = {result.method: result for result in map(results.read, folders())}
    [alone] = map(results.read, folders(Path("alone")))
    assert both["decoupled-cosine"].accuracy == alone.accuracy
    [shared] = folders(Path("alone"))
    stage = (shared / "seed0" / "metrics.jsonl").read_text()
    assert "pretrain (shared)" in stage, "the same images have the same stage 1"


def test_fresh_shares_nothing(run):
    assert run("-m", "decoupled-linear,linear", "--fresh")[0] == 0
    assert not Path("cache/stage1").exists()


def test_seeds_draws_and_the_shape_of_the_split(run):
    code, out, _ = run(
        "-m",
        "decoupled-cosine",
        "--seeds",
        2,
        "--draws",
        2,
        "--base",
        3,
        "--way",
        1,
        "--shot",
        2,
        "--class-order",
        5,
    )
    assert code == 0
    (folder,) = folders()
    result = results.read(folder)
    assert list(zip(result.seeds, result.draws, strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [size.classes for size in result.sessions] == [3, 4, 5, 6]
    assert "4 runs" in out
    assert (folder / "seed1-draw1" / "model.safetensors").exists()


@pytest.mark.parametrize(("base", "to_come"), [(None, 40), (80, 20), (40, 60)])
def test_settings_that_depend_on_the_classes_to_come_know_their_number(base, to_come):
    """FACT has as many virtual prototypes."""
    shape = {"base": base, "way": None, "shot": None, "class_order": None}
    (experiment,) = experiments_of("cifar100", ["fact"], None, None, [], **shape)
    assert experiment.recipe.pretrain.virtual == to_come


def test_one_seed_and_one_draw(run):
    assert run("-m", "decoupled-cosine", "--seed", 3, "--draw", 4)[0] == 0
    (folder,) = folders()
    result = results.read(folder)
    assert (result.seeds, result.draws) == ((3,), (4,))
    assert result.split.startswith("draw 4: ")


def test_precision_and_accel_reach_the_run_and_are_recorded(run, monkeypatch):
    passed = []

    class Spied(job.Runtime):
        def __post_init__(self):
            super().__post_init__()
            passed.append((self.accel, self.precision))

    monkeypatch.setattr(job, "Runtime", Spied)
    code, _, err = run("-m", "decoupled-cosine", "--no-accel", "--precision", "fp16")
    assert code == 0
    assert set(passed) == {(False, "fp16")}
    assert "fp16" in err, "a CPU does not train in fp16, and that is said"
    assert "fp32" in err
    (folder,) = folders()
    machine = results.read(folder).machine
    assert machine["precision"] == "fp32"
    assert machine["accel"].startswith("off")


@pytest.mark.parametrize("command", ["run", "reproduce"])
def test_the_device_is_prepared_once_before_the_images_are_loaded(
    command, fewmore, tiny_folder, monkeypatch
):
    calls = []

    class Loaded(Exception):
        """Stop the command when it loads the images."""

    def load(*_, **__):
        calls.append("load")
        raise Loaded

    monkeypatch.setattr(runner, "prepare_device", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(runner.loading, "load_task", load)
    words = {
        "run": ("run", f"folder:{tiny_folder}", "-m", "decoupled-cosine"),
        "reproduce": ("reproduce", "tsne", "--benchmark", f"folder:{tiny_folder}"),
    }
    with pytest.raises(Loaded):
        fewmore(*words[command], "--device", "cpu", "--no-accel")
    assert calls == [(torch.device("cpu"), False, None), "load"]


def test_a_folder_with_strange_characters_in_its_name(fewmore, tiny_folder, tmp_path):
    strange = tmp_path / "my [bold] birds [/x]"
    strange.parent.mkdir()
    strange.symlink_to(tiny_folder)
    settings = [word for setting in SMALL for word in ("--set", setting)]
    code, out, err = fewmore(
        "run", f"folder:{strange}", "-m", "decoupled-cosine", "--device", "cpu", *settings
    )
    assert (code, err) == (0, "")
    assert "my [bold] birds [/x]" in out.splitlines()[0] + out.splitlines()[1]


# A user's own method


def test_a_method_of_ones_own(run):
    Path("near.py").write_text(NEAREST)
    code, out, err = run("--method", "near.py:Nearest", "--method", "decoupled-cosine")
    assert (code, err) == (0, "")
    own = next(folder for folder in folders() if "-nearest-" in folder.name)
    result = results.read(own)
    assert result.method == "nearest"
    assert json.loads((own / "config.json").read_text())["method"] == "near.py:Nearest"
    assert result.machine["method_source"] == {
        "file": str(Path("near.py").resolve()),
        "sha256": hashlib.sha256(NEAREST.encode()).hexdigest(),
        "named": "near.py:Nearest",
    }
    assert result.accuracy[0][-1] > 80, "these images differ by their colors"
    assert "nearest" in out.rpartition("run folder")[2]


def test_methods_of_one_name_are_told_apart_by_their_files(run):
    Path("near.py").write_text(NEAREST)
    Path("other.py").write_text(NEAREST + "\n")
    code, out, err = run("-m", "near.py:Nearest", "-m", "other.py:Nearest")
    assert (code, err) == (0, "")
    table = out.rpartition("run folder")[2]
    assert "nearest, near.py" in table
    assert "nearest, other.py" in table
    assert "#" not in table


def test_a_name_that_is_given_twice_is_run_once_and_that_is_said(run):
    code, out, err = run("-m", "linear", "-m", "linear", "--features", "cec,cec", "--dry-run")
    assert code == 0
    assert out.count("linear on ") == 1
    assert err.splitlines() == [
        "--method linear was given 2 times, and is run once: several runs are --seeds 2",
        "--features cec was given 2 times, and is run once: several runs are --seeds 2",
    ]


@pytest.mark.parametrize(
    ("text", "name", "complaint"),
    [
        (
            None,
            "Nearest",
            "there is no file near.py: give the path of the Python file that holds Nearest",
        ),
        (NEAREST, "Nearst", "no class in near.py is named 'Nearst': did you mean Nearest?"),
        (
            "class Nearest: ...",
            "Nearest",
            "Nearest in near.py is not a Method: derive it from fewmore.methods.base.Method",
        ),
        (
            NEAREST.replace("def scores", "def score"),
            "Nearest",
            "Nearest in near.py does not implement scores",
        ),
        (
            "import nothing_of_that_name",
            "Nearest",
            "near.py fails when it is loaded: ModuleNotFoundError",
        ),
        (
            NEAREST.replace("return -torch.cdist", "return torch.nan * torch.cdist"),
            "Nearest",
            "Nearest gave scores that are not finite numbers",
        ),
        (
            NEAREST.replace("self.means)", "self.means[1:])"),
            "Nearest",
            "Nearest must give scores of shape (4, 4)",
        ),
    ],
    ids=["no file", "no class", "no method", "abstract", "broken", "NaN", "shape"],
)
def test_what_is_wrong_with_ones_own_method_is_said(text, name, complaint, run):
    if text is not None:
        Path("near.py").write_text(text)
    assert complaint in refusal(run("--method", f"near.py:{name}"))


def test_a_method_of_an_installed_package(run, fewmore, tmp_path, monkeypatch):
    """Install a package with one method: it is listed, run and compared by its name."""
    site = tmp_path / "site"
    (site / "tiny_methods").mkdir(parents=True)
    (site / "tiny_methods" / "__init__.py").write_text("")
    (site / "tiny_methods" / "pixels.py").write_text("from . import near\n" + NEAREST)
    (site / "tiny_methods" / "near.py").write_text("")
    info = site / "tiny_methods-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-methods\nVersion: 1.2\n")
    entry = "[fewmore.methods]\nnearest-pixels = tiny_methods.pixels:Nearest\n"
    (info / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(site)
    code, out, _ = fewmore("methods")
    assert code == 0
    assert re.search(r"nearest-pixels +.*tiny_methods.pixels:Nearest +tiny-methods 1.2", out)
    assert "did you mean nearest-pixels" in refusal(fewmore("run", "glyphs", "-m", "nearest-pixel"))
    for name in ("nearest-pixels", "tiny_methods.pixels:Nearest"):
        words = [word for text in SMALL[:-1] for word in ("--set", text)]
        code, out, err = run("-m", name, "-m", "decoupled-cosine", *words, small=False)
        assert (code, err) == (0, "")
    code, out, _ = fewmore("compare", *folders())
    assert code == 0
    assert "nearest-pixels" in out
    assert {results.read(folder).method for folder in folders()} == {
        "nearest-pixels",
        "nearest",
        "decoupled-cosine",
    }


WRONG_BENCHMARKS = {
    "gone.json": (None, "the benchmark file gone.json cannot be read"),
    "broken.json": ("{", "broken.json is not JSON"),
    "empty.json": ("{}", "must say where its images are, by one of 'folder' and 'benchmark'"),
    "sessions.json": ('{"folder": "photos"}', "'sessions' must be a list"),
    "class.json": (
        '{"folder": "photos", "sessions": [{"classes": ["class 9"]}]}',
        "is named 'class 9': did you mean class 5 or class 4",
    ),
    "gone.py:MINE": (None, "there is no file gone.py"),
    "odd.py:MINE": ("MINE = 3", "MINE in odd.py is of type int, not a Benchmark"),
    "fails.py:MINE": ("1 / 0", "fails.py fails when it is loaded: ZeroDivisionError"),
    "odd.py": ("MINE = 3", "odd.py is a file without a benchmark: make one in it with"),
    "gone.py": (None, "there is no file gone.py"),
    "no_such_module:MINE": (None, "no benchmark is named 'no_such_module:MINE'"),
}


@pytest.mark.parametrize("name", WRONG_BENCHMARKS)
def test_what_is_wrong_with_ones_own_benchmark_is_said(name, fewmore, tiny_folder):
    text, complaint = WRONG_BENCHMARKS[name]
    if text is not None:
        Path(name.partition(":")[0]).write_text(text)
    Path("photos").symlink_to(tiny_folder)
    assert complaint in refusal(fewmore("run", name, "-m", "cec", "--device", "cpu"))


def test_planned_sessions_take_no_other_split(fewmore, tiny_folder):
    named = '{"folder": "%s", "sessions": [{"images": ["class 0/00.png", "class 1/07.png"]}]}'
    Path("named.json").write_text(named % tiny_folder)
    words = ("run", "named.json", "-m", "decoupled-cosine", "--device", "cpu")
    assert "leave out --base, --way" in refusal(fewmore(*words, "--way", 2))
    assert "leave out --draw and --draws" in refusal(fewmore(*words, "--draws", 2))


# Resuming


STOPPING = NEAREST.replace(
    "    def learn(self, session):",
    "    def learn(self, session):\n"
    "        if Path('stop').exists():\n            raise KeyboardInterrupt",
).replace("import torch", "from pathlib import Path\n\nimport torch", 1)


def test_a_stopped_run_says_how_to_go_on_and_does(run):
    methods = ("-m", "decoupled-cosine", "-m", "near.py:Nearest", "-m", "decoupled-linear")
    Path("near.py").write_text(STOPPING)
    Path("stop").touch()
    code, out, err = run(*methods)
    assert code == 130
    assert "stopped; go on with the same command and --resume" in err
    assert "Traceback" not in err
    assert len(folders()) == 2, "the third method had not begun"
    Path("stop").unlink()
    code, out, err = run(*methods, "--resume")
    assert (code, err) == (0, "")
    assert len(folders()) == 3
    assert all((folder / "result.json").exists() for folder in folders())
    assert out.count("run folder") == 2, "the first method was finished"
    table = out.rpartition("run folder")[2]
    assert all(name in table for name in ("decoupled-cosine", "nearest", "decoupled-linear"))
    code, again, err = run(*methods, "--resume")
    assert (code, err) == (0, "")
    assert again.startswith("all runs are finished\n")
    assert again.endswith(table.partition("\n")[2]), "the same table"


def test_resume_joins_no_two_versions_of_a_file(run):
    words = ("-m", "near.py:Nearest")
    Path("near.py").write_text(STOPPING)
    Path("stop").touch()
    assert run(*words)[0] == 130
    (stopped,) = folders()
    before = (stopped / "code.json").read_text()
    Path("stop").unlink()
    Path("near.py").write_text(STOPPING + "\n# edited\n")
    assert "folder    a new one in runs" in run(*words, "--resume", "--dry-run")[1]
    code, out, err = run(*words, "--resume")
    assert (code, err) == (0, "")
    assert f"left as it is: {stopped}, which was begun with another version of near.py" in out
    (finished,) = set(folders()) - {stopped}
    recorded = json.loads((finished / "code.json").read_text())["method_source"]
    assert results.read(finished).machine["method_source"] == recorded
    assert recorded["sha256"] == file_hash(Path("near.py"))
    assert (stopped / "code.json").read_text() == before
    assert not (stopped / "result.json").exists()
    # Nor is the result of the first version that of the second.
    Path("near.py").write_text(STOPPING)
    assert run(*words, "--resume")[0] == 0
    assert (stopped / "result.json").exists()


def test_a_model_is_loaded_with_the_file_it_was_made_with(run, monkeypatch, tmp_path):
    Path("near.py").write_text(NEAREST)
    assert run("-m", "near.py:Nearest")[0] == 0
    (folder,) = folders()
    seed = (folder / "seed0").resolve()
    source = Path("near.py").resolve()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    other = NEAREST.replace("nearest, pixel by pixel", "of another file")
    Path("near.py").write_text(other)
    assert load_method(seed).__doc__ == "The class whose mean image is nearest, pixel by pixel."
    source.write_text(other)
    with pytest.raises(
        MissingData, match=r"near\.py has changed since, and this run was made with"
    ):
        load_method(seed)
    source.unlink()
    with pytest.raises(MissingData, match=r"near\.py is gone, and this run was made with it"):
        load_method(seed)
    Path("near.py").write_text(NEAREST)  # the same file, seen from here
    assert load_method(seed).means.shape[0] == 6
    (seed.parent / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        load_method(seed)


def test_resume_starts_what_was_not_begun_and_says_what_is_done(run, monkeypatch):
    plan = run("-m", "decoupled-cosine", "--resume", "--dry-run")[1]
    assert "folder    a new one in runs" in plan
    code, _, err = run("-m", "decoupled-cosine", "--resume")
    assert (code, err) == (0, "")
    (folder,) = folders()
    plan = run("-m", "decoupled-cosine", "--resume", "--dry-run")[1]
    assert f"folder    {folder}, which is finished" in plan
    with monkeypatch.context() as patch:
        patch.setattr(runner, "load_task", None)  # nothing is loaded where all is done
        code, second, err = run("-m", "decoupled-cosine", "--resume", "--record", "all")
    assert (code, err) == (0, "")
    assert second.startswith("all runs are finished\n")
    (recorded,) = Path("all").iterdir()
    assert recorded.read_bytes() == (folder / "result.json").read_bytes()
    assert len(folders()) == 1
    both = ("-m", "decoupled-cosine", "-m", "decoupled-l2")
    _, out, _ = run(*both, "--resume", "--record", "both")
    assert f"finished already: {folder}" in out
    assert len(list(Path("both").iterdir())) == 2
    (folder / "result.json").unlink()
    plan = run("-m", "decoupled-cosine", "--resume", "--dry-run")[1]
    assert f"folder    {folder}, which is unfinished" in plan


# What is printed


def test_a_dry_run_prints_what_would_be_run(run):
    words = ("-m", "decoupled-l2", "--seeds", 2, "--class-order", 3, "--shot", 2, "--dry-run")
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert "decoupled-l2 on folder:" in out
    assert "recipe    official, resnet8" in out
    assert "transform.size=8" in out
    assert "split     4 base classes, then 2-way 2-shot, class order 3" in out
    assert "runs      seed0 seed1" in out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--way", 0), "way must be at least 1, not 0"),
        (("--base", 0), "base must be at least 1, not 0"),
        (("--shot", -1), "shot must be at least 1, not -1"),
        (("--base", 3, "--way", 2), "sessions of 2 do not divide"),
        (("--base", 7), "7 base classes were asked for, but there are 6 classes"),
        (("--set", "backbone=resnet99"), "no backbone is named 'resnet99': did you mean"),
        (("--set", "weights=none.pt"), "there is no weight file none.pt"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(words, message, run):
    sentence = refusal(run("-m", "decoupled-l2", *words, "--dry-run"))
    assert message in sentence
    assert refusal(run("-m", "decoupled-l2", *words)) == sentence


def test_a_dry_run_chooses_the_sessions_of_a_folder_as_the_run_does(run):
    code, out, _ = run("-m", "decoupled-l2", "--way", 1, "--dry-run")
    assert code == 0
    assert "split     4 base classes, then 1-way 5-shot" in out


def test_epochs_are_printed_where_there_is_no_terminal(run):
    words = ("-m", "decoupled-cosine", "--set", "pretrain.epochs=25")
    lines = [line for line in run(*words)[1].splitlines() if "pretrain " in line]
    assert [line.split()[2] for line in lines] == [
        f"{epoch}/25," for epoch in (3, 6, 9, 12, 15, 18, 21, 24)
    ]


def test_quiet_and_json_print_the_result_alone(run):
    code, loud, _ = run("-m", "decoupled-cosine")
    code, out, err = run("-m", "decoupled-cosine", "--resume", "--quiet")
    assert (code, err) == (0, "")
    assert out == loud.partition("run folder: ")[2].partition("\n")[2]
    code, out, err = run("-m", "decoupled-cosine", "--json")
    assert (code, err) == (0, "")
    [result] = json.loads(out)
    assert result["method"] == "decoupled-cosine"
    assert results.from_json(json.dumps(result)).runs == 1


# On request


def test_scores_and_models_of_sessions_are_saved_on_request(run):
    code, _, err = run("-m", "decoupled-cosine", "--save-scores", "--save-sessions")
    assert (code, err) == (0, "")
    (folder,) = folders()
    saved = sorted(path.relative_to(folder).as_posix() for path in folder.glob("seed0/*/*"))
    assert saved == [
        f"seed0/session{session}/{name}"
        for session in range(2)
        for name in ("model.safetensors", "scores.npz")
    ]
    assert load_method(folder / "seed0", session=0).sessions == 1


# The report


def test_a_report_is_written_anew_from_the_folder(run, fewmore, tiny_folder):
    assert run("-m", "decoupled-linear")[0] == 0
    (folder,) = folders()
    first = (folder / "report.html").read_text()
    for path in [folder / "report.html", *(folder / "figures").iterdir()]:
        path.unlink()
    per_class = (folder / "per-class.csv").read_text()
    (folder / "per-class.csv").unlink()
    code, out, err = fewmore("report", folder, "--images")
    assert (code, err) == (0, "")
    assert f"report: {folder / 'report.html'}\n" in out
    assert (folder / "report.html").read_text() == first
    assert (folder / "figures" / "sessions.png").stat().st_size
    # Class by class, and image by image.
    assert (folder / "figures" / "confusion.png").stat().st_size
    assert (folder / "per-class.csv").read_text() == per_class
    classes = list(csv.DictReader(per_class.splitlines()))
    assert [row["class"] for row in classes] == sorted(
        path.name for path in tiny_folder.iterdir() if path.is_dir()
    )
    assert all(row["class"] in out for row in classes)
    images = list(csv.DictReader((folder / "seed0" / "predictions.csv").read_text().splitlines()))
    assert len(images) == sum(int(row["images"]) for row in classes)
    for image in images:
        assert (tiny_folder / image["file"]).is_file()
        assert image["file"].startswith(f"{image['class']}/")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "benchmark": "folder:gone"}))
    code, _, err = fewmore("report", folder)
    assert code == 0
    assert "the page has no images of confusions: " in err
    assert "The test images of the run were not there." in (folder / "report.html").read_text()
    (folder / "config.json").write_bytes(b"{\xff")
    assert "config.json is not JSON" in refusal(fewmore("report", folder))
    (folder / "config.json").unlink()
    assert "lacks runs/" in refusal(fewmore("report", folder))
    assert "has no result.json" in refusal(fewmore("report", tiny_folder))
    assert "is not a folder" in refusal(fewmore("report", "nowhere"))


# Repeating


def test_a_run_is_repeated_from_its_config(run, fewmore):
    Path("near.py").write_text(NEAREST)
    for method in ("decoupled-cosine", "near.py:Nearest"):
        known = set(folders())
        assert run("-m", method, "--seed", 1, "--draws", 2)[0] == 0
        (first,) = set(folders()) - known
        known = set(folders())
        code, _, err = fewmore("run", "--config", first / "config.json", "--device", "cpu")
        assert (code, err) == (0, "")
        (second,) = set(folders()) - known
        assert (second / "config.json").read_text() == (first / "config.json").read_text()
        assert results.read(second).accuracy == results.read(first).accuracy


def test_a_config_of_another_benchmark_file_is_refused(fewmore, tiny_folder):
    names = sorted(path.name for path in tiny_folder.iterdir() if path.is_dir())

    def write(order: list[str]) -> None:
        sessions = [{"classes": order[:4]}, {"classes": order[4:], "shots": 2}]
        text = json.dumps({"folder": str(tiny_folder), "sessions": sessions})
        Path("own.json").write_text(text)

    write(names)
    settings = [word for name in SMALL for word in ("--set", name)]
    words = ("run", "own.json", "-m", "decoupled-cosine", "--device", "cpu", *settings)
    assert fewmore(*words)[0] == 0
    (folder,) = folders()
    per_class = (folder / "per-class.csv").read_text()
    again = ("run", "--config", folder / "config.json", "--dry-run")
    assert fewmore(*again)[0] == 0
    write([names[1], names[0], *names[2:]])
    assert "own.json is not the benchmark that this run was made with" in refusal(fewmore(*again))
    # The report names the classes of then, and shows no images by the order of now.
    assert fewmore("report", folder)[0] == 0
    assert (folder / "per-class.csv").read_text() == per_class
    assert "The test images of the run were not there." in (folder / "report.html").read_text()


def test_a_config_that_cannot_be_used(fewmore):
    def complaint(*words: str) -> str:
        return refusal(fewmore("run", "--config", "config.json", *words))

    assert "config.json cannot be read" in complaint()
    Path("config.json").write_text("{")
    assert "is not JSON" in complaint()
    assert "says what is run" in complaint("--seed", "1")
    assert "says what is run" in complaint("glyphs")
    Path("config.json").write_text("{}")
    assert "not the config of a run" in complaint()


# Wrong options


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["-m", "decoupled-cosin"], ["'decoupled-cosin'", "did you mean decoupled-cosine"]),
        (["-m", "cosine,"], ["no method is named ''"]),
        (["-m", "cosine", "--recipe", "fast"], ["no recipe is named 'fast'"]),
        (["-m", "cosine", "--set", "pretrain.epoch=3"], ["'epoch'", "did you mean epochs?"]),
        (["-m", "cosine", "--set", "pretrain.epochs"], ["--set pretrain.epochs", "name=value"]),
        (["-m", "cosine", "--set", "pretrain.epochs=x"], ["'x'", "whole number", "100"]),
        (["-m", "cosine", "--seeds", "2", "--seed", "1"], ["--seeds", "--seed ", "keep one"]),
        (["-m", "cosine", "--draws", "2", "--draw", "1"], ["--draws", "--draw ", "keep one"]),
        (["-m", "cosine", "--device", "tpu"], ["--device tpu", "no such device", "cpu, cuda"]),
        (["-m", "cosine", "--device", "cpu:x"], ["--device cpu:x", "no such device"]),
        (["-m", "cosine", "--device", "cuda:99"], ["--device cuda:99", "PyTorch sees"]),
        (["-m", "cosine", "--precision", "fp12"], ["'fp12'", "fp32, tf32, bf16, fp16"]),
        (["-m", "cosine", "--base", "99"], ["99 base classes", "6 classes"]),
        (["-m", "cosine", "--shot", "50"], ["session 1 needs 50"]),
        (["-m", "cosine", "--runs", "file"], ["file cannot be made", "--runs"]),
        (["-m", "cosine", "--runs", "file/runs"], ["cannot be made (Not a directory)", "--runs"]),
        (["-m", "cosine", "--record", "file"], ["--record file cannot be made (File exists)"]),
    ],
    ids=lambda value: " ".join(value) if value[0] == "-m" else "",
)
def test_wrong_options_are_refused_in_a_sentence(words, keys, run):
    Path("file").write_text("")
    message = refusal(run(*words, small=False))
    assert all(key in message for key in keys)


def test_wrong_benchmarks_are_refused_in_a_sentence(fewmore, tmp_path):
    (tmp_path / "some").mkdir()
    assert "no benchmark is named 'cifar10': did you mean cifar100?" in refusal(
        fewmore("run", "cifar10", "-m", "cosine")
    )
    assert "'some' is a folder, not the name of a benchmark: type folder:some" in refusal(
        fewmore("run", "some", "-m", "cosine")
    )
    assert "none is not there" in refusal(fewmore("run", "folder:none", "-m", "cosine"))
    assert "has 0 sub-folders" in refusal(fewmore("run", "folder:some", "-m", "cosine"))
    assert "fewmore data get cifar100" in refusal(
        fewmore("run", "cifar100", "-m", "cosine", "--data-root", tmp_path)
    )


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--seeds", "0", "-m", "cosine"],
        ["--colour", "-m", "cosine"],
        ["-m", "cosine", "--seeds", "two"],
    ],
)
def test_wrong_usage_is_refused_without_a_traceback(words, run):
    code, _, err = run(*words)
    assert code == 2
    assert "Usage:" in err
    assert "Traceback" not in err


def test_an_error_of_ones_own_method_is_a_sentence(run):
    text = NEAREST.replace("torch.cat([self.means", "torch.cat([self.means[0]")
    Path("near.py").write_text(text)
    message = refusal(run("-m", "near.py:Nearest"))
    line = text[: text.index("self.means[0]")].count("\n") + 1
    assert "fewmore: nearest fails in session 1 of seed0: RuntimeError: Tensors must" in message
    assert f"({Path('near.py').absolute()}:{line}); traceback: " in message
    [folder] = folders()
    file = folder / "seed0" / "error.txt"
    assert message.endswith(f"traceback: {file}\n")
    assert file.read_text().startswith("Traceback")
    Path("near.py").write_text(NEAREST)
    assert run("-m", "near.py:Nearest", "--resume")[0] == 0
    assert len(folders()) == 2, "another version of the file is another run"
    assert file.exists()


def test_an_error_that_is_gone_is_forgotten(run):
    broken = '        if Path("broken").exists():\n            raise ValueError("no")\n'
    text = NEAREST.replace("(self, session):\n", f"(self, session):\n{broken}")
    text = text.replace("import torch", "from pathlib import Path\n\nimport torch", 1)
    Path("near.py").write_text(text)
    Path("broken").touch()
    assert run("-m", "near.py:Nearest")[0] == 2
    [folder] = folders()
    assert (folder / "seed0" / "error.txt").exists()
    Path("broken").unlink()
    assert run("-m", "near.py:Nearest", "--resume")[0] == 0
    assert folders() == [folder]
    assert not (folder / "seed0" / "error.txt").exists(), "the run is finished"


def test_an_error_of_the_program_is_not_hidden(run, monkeypatch):
    def fail(*arguments: object) -> None:
        raise AttributeError("dog")

    monkeypatch.setattr("fewmore.research.protocol.session_sizes", fail)
    with pytest.raises(AttributeError, match="dog"):
        run("-m", "decoupled-cosine")


# Lists


def test_the_list_of_methods_is_the_table(fewmore):
    code, out, _ = fewmore("methods")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()[1:] if line[:2].strip()]
    assert names == [*METHODS, "file.py:Class", "features", *FEATURES, "file.py:Class"]
    assert "every image" in out


def test_the_list_of_benchmarks_is_the_table(fewmore):
    code, out, _ = fewmore("benchmarks")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()[1:] if line[:2].strip()]
    assert names == [*BENCHMARKS, "folder:PATH", "FILE.json", "file.py:NAME"]


def test_no_command_shows_the_help(fewmore):
    code, out, err = fewmore()
    assert all(name in out + err for name in ("run", "compare", "benchmarks", "methods", "data"))
    assert code in (0, 2)
    assert fewmore("--help")[0] == 0


def test_errors_are_told_by_main_alone(fewmore, monkeypatch):
    def fails() -> None:
        raise MethodError("what was given, why that cannot be, what to type instead")

    monkeypatch.setattr(cli, "app", fails)
    assert fewmore() == (
        2,
        "",
        "fewmore: what was given, why that cannot be, what to type instead\n",
    )


def test_a_run_that_cannot_begin_leaves_no_folder(fewmore):
    assert "fewmore data get cifar100" in refusal(
        fewmore("run", "cifar100", "-m", "cec", "--data-root", "nowhere")
    )
    assert list(Path("runs").iterdir()) == []


def test_a_command_is_recorded_without_places() -> None:
    from fewmore.cli.research_options import command_line

    words = [
        "run",
        "glyphs",
        "--data-root",
        "/my/data",
        "--seeds",
        "3",
        "--runs=/tmp/r",
        "--record",
        "results",
    ]
    assert command_line(words) == "fewmore run glyphs --seeds 3"


def test_the_settings_of_a_method(fewmore):
    code, out, err = fewmore("settings", "cec", "--recipe", "official", "--benchmark", "cifar100")
    assert (code, err) == (0, "")
    assert "cec on cifar100, recipe official" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["pseudo.angles"][0] == "90,180,270"
    assert " ".join(rows["pretrain.milestones"]) == "60,70 epochs at which the rate falls"
    assert "did you mean cec" in refusal(fewmore("settings", "cecc"))
    assert "no recipe is named" in refusal(fewmore("settings", "cec", "--recipe", "fast"))
