"""Experiments and their run folders."""

import dataclasses
import json
import os
import threading
from pathlib import Path

import pytest
import torch

from fewmore import methods
from fewmore.errors import CheckpointError, MethodError
from fewmore.methods import METHODS
from fewmore.methods.base import override
from fewmore.research import results, runner
from fewmore.research.metrics import summarize
from fewmore.research.runner import Experiment, Watcher
from fewmore.training.checkpoint import read_state
from fewmore.training.loop import _TURNS
from fewmore.training.runtime import Runtime

CPU = torch.device("cpu")


@pytest.fixture
def make(tiny_recipe_for):
    def make(method: str = "decoupled-cosine", **more: object) -> Experiment:
        return Experiment("tiny", method, tiny_recipe_for(method), **more)

    return make


@pytest.fixture
def go(tiny_task, tmp_path):
    def go(
        experiment: Experiment, folder: Path | None = None, **more: object
    ) -> tuple[Path, results.RunResult]:
        folder = folder or runner.new_folder(tmp_path / "runs", experiment)
        return folder, runner.run(experiment, folder, CPU, task=tiny_task, **more)

    return go


class Diary(Watcher):
    """Writes down what it is told, from whichever thread."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    def on_task(self, task: object) -> None:
        self.add("", "task")

    def on_round(self, run: str, report: object) -> None:
        self.add(run, f"{report.stage} {report.round}/{report.rounds}")

    def on_session(self, run: str, outcome: object) -> None:
        self.add(run, f"after session {outcome.sessions - 1}")

    def add(self, run: str, what: str) -> None:
        with self.lock:
            self.told.append((run, what))

    def of(self, run: str) -> list[str]:
        return [what for name, what in self.told if name == run]


class Stopped(Exception):
    """Stands for a kill."""


class Stopper(Diary):
    """Stops at one moment."""

    def __init__(self, at: tuple[str, str]) -> None:
        super().__init__()
        self.at = at

    def add(self, run: str, what: str) -> None:
        super().add(run, what)
        if (run, what) == self.at:
            raise Stopped


def lines(folder: Path, run: str = "seed0") -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]


def without_seconds(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


def predictions(folder: Path, run: str = "seed0") -> torch.Tensor:
    return read_state(folder / run / "predictions.safetensors")["predictions"][""]


# ---- what a run folder holds


def test_a_run_folder_has_everything(make, go, tiny_task):
    experiment = make()
    folder, result = go(experiment, command="fewmore run tiny")
    assert sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    ) == [
        "config.json",
        "result.json",
        "seed0/checkpoint.safetensors",
        "seed0/metrics.jsonl",
        "seed0/model.safetensors",
        "seed0/predictions.safetensors",
    ]
    assert results.to_json(results.read(folder)) == results.to_json(result)
    assert (result.benchmark, result.method, result.recipe, result.command) == (
        "tiny",
        "decoupled-cosine",
        "tiny",
        "fewmore run tiny",
    )
    assert (result.seeds, result.draws, result.keeps) == ((0,), (None,), None)
    assert [(size.classes, size.test) for size in result.sessions] == [(4, 20), (6, 30), (8, 40)]
    assert result.split == tiny_task.split.name


def test_the_config_says_what_was_asked_for(make, tmp_path, tiny_recipe):
    experiment = make(settings={"pretrain.epochs": "2"}, seeds=(0, 1), draws=(0, 1, 2), way=2)
    config = json.loads((runner.new_folder(tmp_path, experiment) / "config.json").read_text())
    assert config["config"] == 1
    assert (config["benchmark"], config["method"], config["way"], config["base"]) == (
        "tiny",
        "decoupled-cosine",
        2,
        None,
    )
    assert (config["seeds"], config["draws"], config["settings"]) == (
        [0, 1],
        [0, 1, 2],
        {"pretrain.epochs": "2"},
    )
    assert config["recipe"]["pretrain"]["epochs"] == tiny_recipe.pretrain.epochs
    assert config["recipe"]["transform"]["size"] == 8


def test_every_test_image_has_a_prediction(make, go, tiny_task):
    folder, result = go(make())
    state = read_state(folder / "seed0" / "predictions.safetensors")
    found = predictions(folder)
    assert found.shape == (3, len(tiny_task.test))
    assert state["labels"].tolist() == tiny_task.test.labels.tolist()
    arrival = state["session_of_class"][state["labels"]]
    for session in range(3):
        assert ((found[session] >= 0) == (arrival <= session)).all()
    summary = summarize(state["labels"], state["session_of_class"], found)
    assert result.accuracy == (tuple(summary.accuracy.tolist()),)


def test_the_model_gives_the_last_predictions(make, go, tiny_task, tiny_recipe_for):
    folder, _ = go(make())
    method = METHODS["decoupled-cosine"].build(
        tiny_recipe_for("decoupled-cosine"), Runtime(), 0
    )
    method.restore(read_state(folder / "seed0" / "model.safetensors"))
    assert torch.equal(method.scores(tiny_task.test).argmax(1), predictions(folder)[-1])


def test_metrics_tell_every_round_and_session(make, go):
    folder, result = go(make("finetune"))
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
    told = [line for line in found if "session" in line]
    assert [line["session"] for line in told] == [0, 1, 2]
    assert [line["accuracy"] for line in told] == pytest.approx(result.accuracy[0], abs=1e-3)
    assert "novel" not in told[0], "what is undefined is left out"
    assert {"base", "novel", "harmonic"} <= told[1].keys()
    assert set(result.seconds[0]) == {
        "fit",
        "learn",
        "test",
        "pretrain",
        "sessions",
        "share of the wall clock",
    }


def test_what_is_kept_of_old_images_is_written(make, go):
    result = go(make("joint"))[1]
    assert result.keeps == "every image"
    assert result.extra["images_kept"] == ((48.0, 54.0, 60.0),), "after each session"
    assert "images_kept" not in go(make("finetune"))[1].extra


def test_two_folders_in_the_same_second_differ(make, tmp_path):
    folders = {runner.new_folder(tmp_path, make()) for _ in range(3)}
    assert len(folders) == 3
    assert all(folder.name.startswith("tiny-decoupled-cosine-") for folder in folders)


def test_names_of_folders_have_no_strokes(make, tmp_path):
    experiment = dataclasses.replace(make("some/where/mine.py:Mine"), benchmark="folder:/my/birds")
    folder = runner.new_folder(tmp_path, experiment)
    assert folder.parent == tmp_path
    assert folder.name.startswith("folder--my-birds-mine-")


def test_a_place_that_is_no_folder_is_refused(make, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be made .* --runs"):
        runner.new_folder(tmp_path / "file", make())


# ---- several seeds and draws


def test_seeds_and_draws(make, go, tiny_task):
    experiment = make(seeds=(0, 1), draws=(0, 1))
    diary = Diary()
    folder, result = go(experiment, watcher=diary)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "seed0-draw0",
        "seed0-draw1",
        "seed1-draw0",
        "seed1-draw1",
    ]
    assert (
        list(zip(result.seeds, result.draws, strict=True))
        == [(0, 0), (0, 1), (1, 0), (1, 1)]
        == experiment.runs()
    )
    assert len(result.accuracy) == 4
    assert result.split == "2 draws: 4 base, 2-way 3-shot"
    assert {name for name, _ in diary.told} == {
        "",
        *(runner.run_name(*pair) for pair in experiment.runs()),
    }
    models = {
        name: read_state(folder / name / "model.safetensors")
        for name in ("seed0-draw0", "seed0-draw1", "seed1-draw0")
    }
    rows = {name: model["network"]["classifier"]["rows"] for name, model in models.items()}
    assert torch.equal(rows["seed0-draw0"][:4], rows["seed0-draw1"][:4]), (
        "another draw is the same base session"
    )
    assert not torch.equal(rows["seed0-draw0"][4:], rows["seed0-draw1"][4:]), "and other shots"
    assert not torch.equal(rows["seed0-draw0"][:4], rows["seed1-draw0"][:4])


def test_runs_side_by_side_give_the_same(make, go, tmp_path):
    experiment = make("finetune", seeds=(0, 1), draws=(0, 1))
    one, single = go(experiment, parallel=1)
    # They write the stage 1 that draws share at the same time.
    other, double = go(experiment, parallel=4, share=tmp_path / "stage1")
    assert double.accuracy == single.accuracy
    for seed, draw in experiment.runs():
        name = runner.run_name(seed, draw)
        assert torch.equal(predictions(one, name), predictions(other, name))


@pytest.mark.parametrize("parallel", [1, 2])
def test_where_one_run_fails_the_others_stop(parallel, make, go):
    experiment = override(make(seeds=(0, 1, 2)), {"recipe": {"pretrain": {"epochs": 500}}})

    class Failing(Diary):
        def on_round(self, run: str, report: object) -> None:
            super().on_round(run, report)
            if run == "seed0" and report.round == 3:
                raise MethodError("seed 0 fails")

    watcher = Failing()
    with pytest.raises(MethodError, match="seed 0 fails"):
        go(experiment, parallel=parallel, watcher=watcher)
    assert len(watcher.told) < 500
    assert not any("after" in what for _, what in watcher.told)


# ---- going on


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
def test_a_stopped_run_goes_on_to_the_same_end(moment, make, go):
    experiment = make("finetune", seeds=(0, 1))
    whole, expected = go(experiment)
    stopper = Stopper(("seed1", moment))
    folder = runner.new_folder(whole.parent, experiment)
    with pytest.raises(Stopped):
        go(experiment, folder, watcher=stopper, checkpoint_every=0)
    assert not (folder / "result.json").exists()
    assert runner.folders_to_resume(whole.parent, [experiment]) == [folder]
    with (folder / "seed1" / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "pretr')  # a kill cuts a line
    _, result = go(experiment, folder, checkpoint_every=0)
    assert result.accuracy == expected.accuracy
    for run in ("seed0", "seed1"):
        assert without_seconds(lines(folder, run)) == without_seconds(lines(whole, run))
        assert torch.equal(predictions(folder, run), predictions(whole, run))
        assert (folder / run / "model.safetensors").read_bytes() == (
            whole / run / "model.safetensors"
        ).read_bytes()


def test_a_run_that_is_done_is_not_done_again(make, go):
    experiment = make(seeds=(0, 1))
    folder, expected = go(experiment)
    (folder / "result.json").unlink()
    diary = Diary()
    _, result = go(experiment, folder, watcher=diary)
    assert diary.told == [("", "task")]
    assert result.accuracy == expected.accuracy


def test_nothing_to_resume_is_said(make, go, tmp_path):
    runs = tmp_path / "runs"
    with pytest.raises(
        CheckpointError,
        match=r"nothing to resume: no run below .*runs has these settings; leave out --resume",
    ):
        runner.folders_to_resume(runs, [make()])
    folder, _ = go(make())
    with pytest.raises(
        CheckpointError,
        match=rf"nothing to resume: {folder} is finished; see it with: fewmore compare {folder}",
    ):
        runner.folders_to_resume(runs, [make()])
    with pytest.raises(CheckpointError, match="no run below"):
        runner.folders_to_resume(runs, [make(seeds=(1,))])


def test_the_newest_unfinished_folder_is_resumed(make, tmp_path):
    old, new = runner.new_folder(tmp_path, make()), runner.new_folder(tmp_path, make())
    os.utime(old / "config.json", (1, 1))
    os.utime(new / "config.json", (2, 2))
    assert runner.folders_to_resume(tmp_path, [make()]) == [new]
    (new / "result.json").write_text("")
    assert runner.folders_to_resume(tmp_path, [make()]) == [old]


def test_of_several_experiments_the_finished_stay_and_the_others_begin(make, tmp_path):
    experiments = [make(name) for name in ("finetune", "linear", "cosine")]
    finished = runner.new_folder(tmp_path, experiments[0])
    (finished / "result.json").write_text("")
    assert runner.folders_to_resume(tmp_path, experiments) == [finished, None, None]
    unfinished = runner.new_folder(tmp_path, experiments[1])
    assert runner.folders_to_resume(tmp_path, experiments) == [finished, unfinished, None]
    others = [finished, unfinished, runner.new_folder(tmp_path, experiments[2])]
    for folder in others:
        (folder / "result.json").write_text("")
    with pytest.raises(
        CheckpointError, match=r"all 3 runs are finished; see it with: fewmore compare .* .* "
    ):
        runner.folders_to_resume(tmp_path, experiments)


# ---- stage 1 is shared


@pytest.mark.parametrize("method", METHODS)
def test_a_shared_stage_1_changes_nothing(method, make, go, tmp_path, tiny_task, small_recipe):
    experiment = dataclasses.replace(
        make(method), recipe=small_recipe("quick", tiny_task.benchmark, method)
    )
    share = tmp_path / "stage1"
    for other in ("decoupled-linear", "decoupled-cosine"):
        config = METHODS[other].config("quick", tiny_task.benchmark)
        recipe = dataclasses.replace(experiment.recipe, method=config)
        go(dataclasses.replace(experiment, method=other, recipe=recipe), share=share)
    assert len(list(share.iterdir())) == 2
    diary = Diary()
    shared, with_it = go(experiment, share=share, watcher=diary)
    alone, without_it = go(experiment)
    assert [what for what in diary.of("seed0") if what.startswith("pretrain")] == [
        "pretrain (shared) 2/2"
    ]
    assert with_it.accuracy == without_it.accuracy
    assert torch.equal(predictions(shared), predictions(alone))


@pytest.mark.parametrize("change", ["seed", "settings", "head", "images"])
def test_stage_1_is_not_shared_with_another(
    change, make, go, tmp_path, tiny_task, tiny_images
):
    share = tmp_path / "stage1"
    go(make(), share=share)
    experiment, diary = make(), Diary()
    task = tiny_task
    if change == "seed":
        experiment = make(seeds=(1,))
    elif change == "settings":
        experiment = override(experiment, {"recipe": {"pretrain": {"lr": 0.05}}})
    elif change == "head":
        experiment = make("decoupled-linear")
    else:
        task = dataclasses.replace(task, train=tiny_images(8, 12, seed=5))
    folder = runner.new_folder(tmp_path / "runs", experiment)
    runner.run(experiment, folder, CPU, task=task, share=share, watcher=diary)
    assert diary.told[1][1] == "pretrain 1/2"
    assert len(list(share.iterdir())) == 2


# ---- several experiments


def test_experiments_side_by_side_give_the_same_as_one_by_one(make, go, tiny_task, tmp_path):
    experiments = [make(seeds=(0, 1)), make("finetune"), make("decoupled-linear")]
    alone = [go(experiment)[1].accuracy for experiment in experiments]
    plans = [
        runner.Plan(e, runner.new_folder(tmp_path / "together", e), Diary()) for e in experiments
    ]
    found = runner.run_together(
        plans, tiny_task, CPU, "fewmore", parallel=3, share=tmp_path / "stage1"
    )
    assert [result.accuracy for result in found] == alone
    for plan, result in zip(plans, found, strict=True):
        assert results.to_json(results.read(plan.folder)) == results.to_json(result)
        assert set(plan.watcher.of("seed0")) > {"after session 0", "after session 2"}
    assert runner.run_together([], tiny_task, CPU) == []


@pytest.mark.parametrize("turns", [False, True], ids=["all at once", "taking turns"])
def test_of_runs_side_by_side_one_makes_the_stage_1_that_all_need(
    turns, make, tiny_task, tmp_path, monkeypatch
):
    if turns:  # as on a GPU: who waits for another must not keep it from working
        monkeypatch.setattr(runner, "beside_others", lambda device: _TURNS.taken())
    experiments = [
        override(make("finetune"), {"recipe": {"method": {"session": {"epochs": n}}}})
        for n in (2, 3, 4, 5)
    ]
    plans = [runner.Plan(e, runner.new_folder(tmp_path / "runs", e), Diary()) for e in experiments]
    found: list[results.RunResult] = []
    worker = threading.Thread(
        target=lambda: found.extend(
            runner.run_together(plans, tiny_task, CPU, parallel=4, share=tmp_path / "stage1")
        ),
        daemon=True,
    )
    worker.start()
    worker.join(120)
    assert len(found) == 4, "they wait for one another"
    first = [
        [what for what in plan.watcher.of("seed0") if what.startswith("pretrain")] for plan in plans
    ]
    assert sorted(first) == [["pretrain (shared) 2/2"]] * 3 + [["pretrain 1/2", "pretrain 2/2"]]


def test_shares_of_the_wall_clock_add_up(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(runner.time, "monotonic", lambda: now[0])
    clock = runner._Clock()
    clock.start("a")
    now[0] = 10
    clock.start("b")
    now[0] = 14
    assert clock.stop("a") == 12
    now[0] = 20
    assert clock.stop("b") == 8


def test_a_finished_folder_is_found_before_an_unfinished_one(make, tmp_path):
    old, new = runner.new_folder(tmp_path, make()), runner.new_folder(tmp_path, make())
    os.utime(old / "config.json", (1, 1))
    assert runner.folders_of(tmp_path, [make(), make("finetune")]) == [new, None]
    (old / "result.json").write_text("")
    assert runner.folders_of(tmp_path, [make()]) == [old]


# ---- a method of one's own


OWN = """
import torch
from fewmore.methods.base import Method

class Mine(Method):
    \"\"\"Says the last class.\"\"\"
    keeps = "a little"
    def fit(self, base): self.classes = len(base.class_names)
    def learn(self, session): self.classes += len(session.class_names)
    def scores(self, images): return torch.arange(self.classes).float().expand(len(images), -1)
    def state(self): return {"classes": self.classes}
    def restore(self, state): self.classes = state["classes"]
"""


def test_a_file_that_changes_while_it_runs_does_no_harm(make, go, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    experiment = make(f"{path}:Mine", seeds=(0, 1))

    class Editor(Watcher):
        def on_session(self, run: str, outcome: object) -> None:
            path.write_text("def")

    _, result = go(experiment, watcher=Editor())
    assert result.keeps == "a little"
    assert result.accuracy == ((25.0, pytest.approx(100 / 6), 12.5),) * 2
    with pytest.raises(MethodError, match="fails when it is loaded"):
        methods.find(experiment.method)
