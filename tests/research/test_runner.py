"""Test that experiments run, resume and share stage 1, and what they write."""

import dataclasses
import json
import threading
from pathlib import Path

import pytest
import torch

from fewmore import methods
from fewmore.errors import ConfigError, MethodError
from fewmore.methods import METHODS
from fewmore.methods.decoupled import Decoupled
from fewmore.methods.recipe import override
from fewmore.nn.similarity import TEMPERATURE
from fewmore.research import integrity, job, results, run_folder, runner
from fewmore.research.experiment import Experiment, run_name
from fewmore.research.machine import source_digest
from fewmore.research.metrics import summarize
from fewmore.research.metrics_log import MetricsLog
from fewmore.research.recipes import recipe
from fewmore.research.results import SHARED_STAGE1, WALL_CLOCK
from fewmore.research.runner import Plan, RunOptions, Watcher
from fewmore.research.setting_list import setting_values
from fewmore.training.checkpoint import read_state
from fewmore.training.runtime import Runtime


class Recorder(Watcher):
    """Record all events, from whichever thread."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    def on_task(self, task: object) -> None:
        self.add("", "task")

    def on_round(self, run: str, report: object) -> None:
        self.add(run, f"{report.stage} {report.round}/{report.rounds}")

    def on_session(self, run: str, outcome: object) -> None:
        self.add(run, f"after session {outcome.sessions - 1}")

    def add(self, run: str, event: str) -> None:
        with self.lock:
            self.events.append((run, event))

    def of(self, run: str, prefix: str = "") -> list[str]:
        """Return the events of a run that begin with a prefix."""
        return [event for name, event in self.events if name == run and event.startswith(prefix)]


class Stopped(Exception):
    """Stand for a kill."""


class Stopper(Recorder):
    """Stop at one event."""

    def __init__(self, at: tuple[str, str]) -> None:
        super().__init__()
        self.at = at

    def add(self, run: str, event: str) -> None:
        super().add(run, event)
        if (run, event) == self.at:
            raise Stopped


def lines(folder: Path, run: str = "seed0") -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]


def without_seconds(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def predictions(folder: Path, run: str = "seed0") -> torch.Tensor:
    return read_state(folder / run / "predictions.safetensors")["predictions"][""]


# Files of a run


def test_a_run_folder_has_everything(make_experiment, run, tiny_task):
    experiment = make_experiment()
    folder, result = run(experiment, command="fewmore run tiny")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(path.relative_to(folder).as_posix() for path in files) == [
        "config.json",
        "result.json",
        "seed0/checkpoint.safetensors",
        "seed0/metrics.jsonl",
        "seed0/model.safetensors",
        "seed0/predictions.safetensors",
    ]
    assert results.to_json(results.read(folder)) == results.to_json(result)
    assert (result.benchmark, result.method) == ("tiny", "decoupled-cosine")
    assert (result.recipe, result.command) == ("tiny", "fewmore run tiny")
    assert (result.seeds, result.draws, result.keeps) == ((0,), (None,), None)
    assert [(size.classes, size.test) for size in result.sessions] == [(4, 20), (6, 30), (8, 40)]
    assert result.split == tiny_task.split.name
    assert result.all_settings == setting_values(experiment.recipe)
    assert result.machine["precision"] == "fp32"
    assert result.machine["accel"].startswith("off"), "a CPU has no fast path"
    assert result.machine["side_by_side"] == 1
    assert result.machine["checks"] == ", ".join(integrity.CHECKS)
    assert result.machine["source"] == source_digest()


def test_a_precision_that_does_not_exist_is_refused(make_experiment, run):
    with pytest.raises(ConfigError, match="fp32"):
        RunOptions(precision="fp12").notes()
    with pytest.raises(ConfigError, match="fp32"):
        run(make_experiment(), precision="fp12")


def test_every_test_image_has_a_prediction(make_experiment, run, tiny_task):
    folder, result = run(make_experiment())
    state = read_state(folder / "seed0" / "predictions.safetensors")
    found = predictions(folder)
    assert found.shape == (3, len(tiny_task.test))
    assert state["labels"].tolist() == tiny_task.test.labels.tolist()
    arrival = state["session_of_class"][state["labels"]]
    for session in range(3):
        assert ((found[session] >= 0) == (arrival <= session)).all()
    summary = summarize(state["labels"], state["session_of_class"], found)
    assert result.accuracy == (tuple(summary.accuracy.tolist()),)


def test_the_model_gives_the_last_predictions(make_experiment, run, tiny_task, tiny_recipe_for):
    folder, _ = run(make_experiment())
    recipe = tiny_recipe_for("decoupled-cosine")
    method = METHODS["decoupled-cosine"].build(recipe, Runtime(), 0)
    method.restore(read_state(folder / "seed0" / "model.safetensors"))
    assert torch.equal(method.scores(tiny_task.test).argmax(1), predictions(folder)[-1])


def test_metrics_have_every_round_and_session(make_experiment, run):
    folder, result = run(make_experiment("finetune"))
    found = lines(folder)
    rounds = [(line["stage"], line["round"], line["rounds"]) for line in found if "stage" in line]
    assert rounds == [
        (stage, n, 2) for stage in ("pretrain", "session 1", "session 2") for n in (1, 2)
    ]
    assert all(
        line["loss"] > 0 and line["lr"] > 0 and line["seconds"] >= 0
        for line in found
        if "stage" in line
    )
    sessions = [line for line in found if "session" in line]
    assert [line["session"] for line in sessions] == [0, 1, 2]
    assert [line["accuracy"] for line in sessions] == pytest.approx(result.accuracy[0], abs=1e-3)
    assert "novel" not in sessions[0], "what is undefined is left out"
    assert {"base", "novel", "harmonic"} <= sessions[1].keys()
    stages = {"fit", "learn", "test", "pretrain", "sessions", WALL_CLOCK}
    assert set(result.seconds[0]) == stages


def test_what_is_kept_of_old_images_is_written(make_experiment, run):
    result = run(make_experiment("joint"))[1]
    assert result.keeps == "every image"
    assert result.extra["images_kept"] == ((48.0, 54.0, 60.0),), "after each session"
    assert "images_kept" not in run(make_experiment("finetune"))[1].extra


def test_a_method_that_may_keep_images_and_keeps_none_says_so(make_experiment, run, tmp_path):
    """Else its seeds could not be gathered, of which one keeps some."""
    text = "from fewmore.methods.decoupled import Config, Decoupled\n\n\nclass Mine(Decoupled):\n"
    text += '    """Keep hard images."""\n\n    config_type = Config\n    keeps = "hard images"\n'
    (tmp_path / "mine.py").write_text(text)
    result = run(make_experiment(f"{tmp_path / 'mine.py'}:Mine"))[1]
    assert (result.keeps, result.extra["images_kept"]) == ("hard images", ((0.0, 0.0, 0.0),))


def test_a_redrawn_task_has_the_same_classes(tiny_folder):
    name = f"folder:{tiny_folder}"
    task = runner.load_task(name, RunOptions(), draw=0, shot=2, class_order=7)
    made = recipe("quick", task.benchmark, "decoupled-cosine")
    experiment = Experiment(name, "decoupled-cosine", made, draws=(0, 1), shot=2)
    ordered = dataclasses.replace(experiment, class_order=7)
    again = runner.redraw(task, ordered, 1).split.sessions
    assert [each.classes for each in again] == [each.classes for each in task.split.sessions]
    with pytest.raises(ConfigError, match="give the experiment the class_order of the task"):
        runner.redraw(task, experiment, 1)


def test_how_many_views_are_averaged_at_test_time_is_written(make_experiment, run, monkeypatch):
    plain = make_experiment()
    assert run(plain)[1].test_views == (1.0,)
    transform = dataclasses.replace(plain.recipe.transform, test_views=("plain", "flip"))
    recipe = dataclasses.replace(plain.recipe, transform=transform)
    folder, result = run(dataclasses.replace(plain, recipe=recipe))
    assert result.test_views == results.read(folder).test_views == (2.0,)
    monkeypatch.setattr(Decoupled, "test_views", 5)  # the method's own, which come first
    assert run(plain)[1].extra["test_views"] == ((5.0,) * 3,)


# Several seeds and draws


def test_seeds_and_draws(make_experiment, run):
    experiment = make_experiment(seeds=(0, 1), draws=(0, 1))
    recorder = Recorder()
    folder, result = run(experiment, watcher=recorder)
    names = ["seed0-draw0", "seed0-draw1", "seed1-draw0", "seed1-draw1"]
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == names
    assert [run_name(*pair) for pair in experiment.runs()] == names
    assert list(zip(result.seeds, result.draws, strict=True)) == experiment.runs()
    assert experiment.runs() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(result.accuracy) == 4
    assert result.split == "2 draws: 4 base, 2-way 3-shot"
    assert {name for name, _ in recorder.events} == {"", *names}

    def prototypes(name: str) -> torch.Tensor:
        return read_state(folder / name / "model.safetensors")["network"]["classifier"]["rows"]

    first = prototypes("seed0-draw0")
    other_draw = prototypes("seed0-draw1")
    assert torch.equal(first[:4], other_draw[:4]), "another draw has the same base session"
    assert not torch.equal(first[4:], other_draw[4:]), "and other shots"
    assert not torch.equal(first[:4], prototypes("seed1-draw0")[:4])


def test_runs_side_by_side_give_the_same(make_experiment, run, tmp_path):
    experiment = make_experiment("finetune", seeds=(0, 1), draws=(0, 1))
    one_by_one, expected = run(experiment, parallel=1)
    # They write the stage 1 that draws share at the same time.
    together, result = run(experiment, parallel=4, stage1_cache=tmp_path / "stage1")
    assert result.accuracy == expected.accuracy
    for seed, draw in experiment.runs():
        name = run_name(seed, draw)
        assert torch.equal(predictions(one_by_one, name), predictions(together, name))


@pytest.mark.parametrize("parallel", [1, 2])
def test_where_one_run_fails_the_others_stop(parallel, make_experiment, run):
    experiment = make_experiment(seeds=(0, 1, 2))
    experiment = override(experiment, {"recipe": {"pretrain": {"epochs": 500}}})

    class Failing(Recorder):
        def on_round(self, run: str, report: object) -> None:
            super().on_round(run, report)
            if run == "seed0" and report.round == 3:
                raise MethodError("seed 0 fails")

    watcher = Failing()
    with pytest.raises(MethodError, match="seed 0 fails"):
        run(experiment, parallel=parallel, watcher=watcher)
    assert len(watcher.events) < 500
    assert not any("after" in event for _, event in watcher.events)


# Resuming


MOMENTS = [
    "pretrain 1/2",
    "pretrain 2/2",
    "after session 0",
    "session 1 1/2",
    "session 1 2/2",
    "after session 1",
    "after session 2",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stopped_run_goes_on_to_the_same_end(moment, make_experiment, run):
    experiment = make_experiment("finetune", seeds=(0, 1))
    whole, expected = run(experiment)
    stopper = Stopper(("seed1", moment))
    folder = run_folder.create(whole.parent, experiment)
    with pytest.raises(Stopped):
        run(experiment, folder, watcher=stopper, checkpoint_every=0)
    assert not (folder / "result.json").exists()
    assert run_folder.find(whole.parent, [experiment], prefer_finished=False) == [folder]
    with (folder / "seed1" / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "pretr')  # a kill cuts a line
    _, result = run(experiment, folder, checkpoint_every=0)
    assert result.accuracy == expected.accuracy
    for name in ("seed0", "seed1"):
        assert without_seconds(lines(folder, name)) == without_seconds(lines(whole, name))
        assert torch.equal(predictions(folder, name), predictions(whole, name))
        model, expected_model = (f / name / "model.safetensors" for f in (folder, whole))
        assert model.read_bytes() == expected_model.read_bytes()


@pytest.mark.parametrize("damage", [b"\0\0\xff\n", b"garbage\n", b"3\n", b'{"round": 2'])
def test_damaged_lines_of_the_metrics_are_dropped(damage, tmp_path):
    path = tmp_path / "metrics.jsonl"
    first, second = ({"stage": "pretrain", "round": number, "seconds": 1.5} for number in (1, 2))
    whole = f"{json.dumps(first)}\n".encode()
    path.write_bytes(whole + damage)
    log = MetricsLog(path)
    assert path.read_bytes() == whole
    assert not log.add(first)
    assert log.add(second)
    assert MetricsLog(path).lines == [first, second]
    assert MetricsLog(path).seconds() == {"pretrain": 3.0}


def test_a_run_that_is_done_is_not_done_again(make_experiment, run):
    experiment = make_experiment(seeds=(0, 1))
    folder, expected = run(experiment)
    (folder / "result.json").unlink()
    recorder = Recorder()
    _, result = run(experiment, folder, watcher=recorder)
    assert recorder.events == [("", "task")]
    assert result.accuracy == expected.accuracy
    assert None not in expected.total_seconds
    assert result.total_seconds == (None, None), "the seconds before the stop are not known"
    assert not any("fit" in seconds for seconds in result.seconds)


# Shared stage 1


@pytest.mark.parametrize("method", METHODS)
def test_a_shared_stage_1_changes_nothing_but_the_seconds(
    method, make_experiment, run, tmp_path, tiny_task, small_recipe
):
    experiment = dataclasses.replace(
        make_experiment(method), recipe=small_recipe("quick", tiny_task.benchmark, method)
    )
    cache = tmp_path / "stage1"
    others = ["decoupled-cosine"]
    if experiment.recipe.pretrain.scale == TEMPERATURE:  # a linear head takes no other
        others.append("decoupled-linear")
    for other in others:
        config = METHODS[other].config("quick", tiny_task.benchmark)
        recipe = dataclasses.replace(experiment.recipe, method=config)
        run(dataclasses.replace(experiment, method=other, recipe=recipe), stage1_cache=cache)
    assert len(list(cache.glob("*.safetensors"))) == len(others)
    recorder = Recorder()
    shared, with_it = run(experiment, stage1_cache=cache, watcher=recorder)
    alone, without_it = run(experiment)
    assert recorder.of("seed0", "pretrain") == ["pretrain (shared) 2/2"]
    assert with_it.accuracy == without_it.accuracy
    assert torch.equal(predictions(shared), predictions(alone))
    [seconds] = with_it.seconds
    assert seconds[SHARED_STAGE1] > 0, "what it took when it was trained"
    assert with_it.total_seconds == (seconds[WALL_CLOCK] + seconds[SHARED_STAGE1],)
    assert (with_it.shared_stage1, without_it.shared_stage1) == ((True,), (False,))
    assert without_it.total_seconds == (without_it.seconds[0][WALL_CLOCK],)


@pytest.mark.parametrize("change", ["seed", "settings", "head", "images"])
def test_stage_1_is_not_shared_with_another(
    change, make_experiment, run, tmp_path, tiny_task, tiny_images
):
    cache = tmp_path / "stage1"
    run(make_experiment(), stage1_cache=cache)
    experiment = make_experiment()
    recorder = Recorder()
    task = tiny_task
    if change == "seed":
        experiment = make_experiment(seeds=(1,))
    elif change == "settings":
        experiment = override(experiment, {"recipe": {"pretrain": {"lr": 0.05}}})
    elif change == "head":
        experiment = make_experiment("decoupled-linear")
    else:
        task = dataclasses.replace(task, train=tiny_images(8, 12, seed=5))
    run(experiment, task=task, stage1_cache=cache, watcher=recorder)
    assert recorder.events[1][1] == "pretrain 1/2"
    assert len(list(cache.glob("*.safetensors"))) == 2


# Several experiments


def test_experiments_side_by_side_give_the_same_as_one_by_one(
    make_experiment, run, tiny_task, tmp_path
):
    experiments = [make_experiment(name) for name in ("finetune", "decoupled-linear")]
    experiments.append(make_experiment(seeds=(0, 1)))
    alone = [run(experiment)[1].accuracy for experiment in experiments]
    plans = [Plan(e, run_folder.create(tmp_path / "together", e), Recorder()) for e in experiments]
    options = RunOptions(parallel=3, command="fewmore", stage1_cache=tmp_path / "stage1")
    found = runner.run_plans(plans, tiny_task, options)
    assert [result.accuracy for result in found] == alone
    for plan, result in zip(plans, found, strict=True):
        assert results.to_json(results.read(plan.folder)) == results.to_json(result)
        assert set(plan.watcher.of("seed0")) > {"after session 0", "after session 2"}
    assert runner.run_plans([], tiny_task, options) == []


@pytest.mark.parametrize("locked", [False, True], ids=["all at once", "taking turns"])
def test_of_runs_side_by_side_one_trains_the_stage_1_that_all_need(
    locked, make_experiment, tiny_task, tmp_path, monkeypatch
):
    if locked:  # as on a GPU: a run that waits for another must not keep it from working
        sharing = pytest.importorskip("fewmore.accel.sharing")
        monkeypatch.setattr(job, "share_gpu", lambda device: sharing.GPU_LOCK.held())
    experiments = [
        override(make_experiment("finetune"), {"recipe": {"method": {"session": {"epochs": n}}}})
        for n in (2, 3, 4, 5)
    ]
    plans = [Plan(e, run_folder.create(tmp_path / "runs", e), Recorder()) for e in experiments]
    options = RunOptions(parallel=4, stage1_cache=tmp_path / "stage1")
    found: list[results.RunResult] = []
    worker = threading.Thread(
        target=lambda: found.extend(runner.run_plans(plans, tiny_task, options)), daemon=True
    )
    worker.start()
    worker.join(120)
    assert len(found) == 4, "they wait for one another"
    stage1 = [plan.watcher.of("seed0", "pretrain") for plan in plans]
    assert sorted(stage1) == [["pretrain (shared) 2/2"]] * 3 + [["pretrain 1/2", "pretrain 2/2"]]


# A user's own method


OWN_METHOD = """
from dataclasses import dataclass
import torch
from fewmore.methods.base import Method, MethodConfig

@dataclass(frozen=True)
class Config(MethodConfig):
    alpha: float = 0.5  # weight of nothing

class Mine(Method):
    \"\"\"Predict the last class.\"\"\"
    keeps = "a little"
    config_type = Config
    def fit(self, base): self.classes = len(base.class_names)
    def learn(self, session): self.classes += len(session.class_names)
    def scores(self, images): return torch.arange(self.classes).float().expand(len(images), -1)
    def state(self): return {"classes": self.classes}
    def restore(self, state): self.classes = state["classes"]
"""


def test_a_file_that_changes_while_it_runs_does_no_harm(make_experiment, run, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN_METHOD)
    experiment = make_experiment(f"{path}:Mine", seeds=(0, 1))
    config = methods.find(experiment.method).load().config_type()
    tuned = dataclasses.replace(experiment.recipe, method=config)
    experiment = dataclasses.replace(experiment, recipe=tuned)

    class Editor(Watcher):
        def on_session(self, run: str, outcome: object) -> None:
            path.write_text("def")

    _, result = run(experiment, watcher=Editor())
    assert result.keeps == "a little"
    assert result.all_settings["alpha"] == "0.5"
    assert result.accuracy == ((25.0, pytest.approx(100 / 6), 12.5),) * 2
    with pytest.raises(MethodError, match="fails when it is loaded"):
        methods.find(experiment.method)
