"""Test what loggers are told of a run, and that each of them keeps it."""

import csv
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from fewmore.errors import ConfigError, MethodError, UnknownName
from fewmore.research import loggers
from fewmore.research.loggers import LOGGERS, Logger, RunFacts
from fewmore.research.runner import Watcher

SESSIONS = 3  # of the small task


class Stopped(Exception):
    """Stand for a kill."""


class StopAtSession(Watcher):
    def on_session(self, run: str, outcome: object) -> None:
        raise Stopped


@pytest.fixture
def facts(make_experiment, tmp_path) -> RunFacts:
    folder = tmp_path / "runs" / "RUN" / "seed0"
    folder.mkdir(parents=True)
    return RunFacts(make_experiment(shot=3), folder, 0, None)


@pytest.fixture
def recorded(monkeypatch) -> list[tuple]:
    """Put a logger that records all calls in place of the one that writes CSV."""
    calls: list[tuple] = []

    class Recorder(Logger):
        def __init__(self, facts: RunFacts) -> None:
            calls.append(("open", facts.name))

        def log(self, group, step, values) -> None:
            calls.append((group, step, dict(values)))

        def close(self, failed: bool) -> None:
            calls.append(("close", failed))

    monkeypatch.setattr("fewmore.research.loggers.csv_file.CsvLogger", Recorder)
    return calls


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# What loggers are told


def test_rounds_and_sessions_are_told_in_order(run, make_experiment, recorded):
    folder, result = run(make_experiment(), loggers=("csv",))
    assert recorded[0] == ("open", f"{folder.name}/seed0")
    assert recorded[-1] == ("close", False)
    told = recorded[1:-1]
    assert [(group, step) for group, step, _ in told] == [
        ("pretrain", 1),
        ("pretrain", 2),
        *(("sessions", session) for session in range(SESSIONS)),
    ]
    assert set(told[0][2]) == {"loss", "lr", "seconds"}
    assert set(told[2][2]) == {"accuracy", "base"}, "no new class in session 0"
    assert told[-1][2]["accuracy"] == pytest.approx(result.last[0], abs=1e-4)
    assert set(told[-1][2]) == {"accuracy", "base", "novel", "harmonic"}


def test_a_resumed_run_tells_nothing_twice(run, make_experiment, recorded, tmp_path):
    from fewmore.research import run_folder

    experiment = make_experiment()
    folder = run_folder.create(tmp_path / "runs", experiment)
    with pytest.raises(Stopped):
        run(experiment, folder, StopAtSession(), loggers=("csv",), checkpoint_every=0.0)
    assert recorded[-1] == ("close", True), "closed although the run was stopped"
    run(experiment, folder, loggers=("csv",), checkpoint_every=0.0)
    told = [call[:2] for call in recorded if call[0] not in ("open", "close")]
    assert len(told) == len(set(told)) == 2 + SESSIONS


def test_loggers_are_closed_when_a_method_fails(run, make_experiment, recorded, monkeypatch):
    def fail(*arguments: object) -> None:
        raise MethodError("it cannot be")

    monkeypatch.setattr("fewmore.methods.decoupled.Decoupled.learn", fail)
    with pytest.raises(MethodError):
        run(make_experiment(), loggers=("csv",))
    assert recorded[-1] == ("close", True)


def test_a_logger_that_fails_does_not_stop_a_run(run, make_experiment, recorded, monkeypatch):
    def fail(self, group, step, values) -> None:
        raise OSError("the server is gone")

    from fewmore.research.loggers import csv_file

    monkeypatch.setattr(csv_file.CsvLogger, "log", fail)
    with pytest.warns(UserWarning, match="--log csv stopped.*the server is gone"):
        _, result = run(make_experiment(), loggers=("csv",))
    assert len(result.accuracy[0]) == SESSIONS


def test_hyperparameters_are_the_whole_recipe(facts):
    values = facts.hyperparameters()
    assert values["benchmark"] == "tiny"
    assert values["method"] == "decoupled-cosine"
    assert values["shot"] == 3
    assert "base" not in values, "not changed"
    assert values["recipe.pretrain.epochs"] == 2
    assert values["recipe.pretrain.milestones"] == "(1,)"
    assert values["recipe.method.similarity"] == "cosine"
    json.dumps(values)


# Names and packages


def test_an_unknown_logger():
    with pytest.raises(UnknownName, match="did you mean tensorboard"):
        loggers.check(["tensorbord"])


@pytest.mark.parametrize("name", [name for name, (_, _, package) in LOGGERS.items() if package])
def test_a_missing_package_is_a_sentence_before_training(name, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf'not installed: pip install "fewmore\[{name}\]"'):
        loggers.check([name])


def test_a_logger_that_cannot_begin(facts, monkeypatch):
    def init(**options: object) -> None:
        raise RuntimeError("no API key is known")

    module = ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(loggers, "find_spec", lambda package: True)
    with (
        pytest.raises(ConfigError, match="--log wandb cannot begin: no API key is known"),
        loggers.opened(["wandb"], facts),
    ):
        pass


# CSV


def test_csv_holds_what_the_run_reports(run, make_experiment):
    folder, result = run(make_experiment(seeds=(0, 1)), loggers=("csv", "csv"))
    for number, seed in enumerate(("seed0", "seed1")):
        table = rows(folder / seed / "metrics.csv")
        lines = (folder / seed / "metrics.jsonl").read_text().splitlines()
        assert len(table) == len(lines) == 2 + SESSIONS
        first, logged = table[0], json.loads(lines[0])
        assert (first["stage"], first["step"]) == ("pretrain", "1")
        assert float(first["loss"]) == logged["loss"]
        assert float(first["lr"]) == logged["lr"]
        assert first["accuracy"] == ""
        last = table[-1]
        assert (last["stage"], last["step"], last["loss"]) == ("sessions", "2", "")
        assert float(last["accuracy"]) == pytest.approx(result.last[number], abs=1e-4)


def test_csv_goes_on_after_a_kill(facts):
    for step in (1, 2):
        with loggers.opened(["csv"], facts) as opened:
            opened.line({"stage": "session 3", "round": step, "rounds": 2, "loss": 0.5})
    table = rows(facts.folder / "metrics.csv")
    assert [(row["stage"], row["step"]) for row in table] == [
        ("session-3", "1"),
        ("session-3", "2"),
    ]


# TensorBoard


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_curves_and_the_recipe(run, make_experiment):
    pytest.importorskip("tensorboard")
    folder, result = run(make_experiment(), loggers=("tensorboard",))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "seed0" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("pretrain/loss")] == [1, 2]
    accuracy = [event.value for event in events.Scalars("sessions/accuracy")]
    assert accuracy == pytest.approx(result.accuracy[0], abs=1e-3)
    text = events.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| recipe.pretrain.epochs | 2 |" in text
    assert events.Scalars("last/accuracy")[0].value == pytest.approx(result.last[0], abs=1e-3)


# W&B and MLflow. Their packages bring dozens of others, so stand-ins take their place: they have
# the functions of wandb 0.31 and mlflow 3.17 that the loggers call.


class Calls(list):
    """Record the calls of a stand-in's functions."""

    def function(self, name: str, answer: object = None):
        def call(*arguments: object, **options: object) -> object:
            self.append((name, arguments, options))
            return answer

        return call

    def of(self, name: str) -> list[tuple]:
        return [(arguments, options) for called, arguments, options in self if called == name]


@pytest.fixture
def wandb(monkeypatch) -> Calls:
    calls = Calls()
    one_run = SimpleNamespace(
        log=calls.function("log"),
        define_metric=calls.function("define_metric"),
        finish=calls.function("finish"),
    )
    module = ModuleType("wandb")
    module.init = calls.function("init", one_run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(loggers, "find_spec", lambda package: True)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return calls


def test_wandb_gets_the_curves_and_the_recipe(run, make_experiment, wandb):
    folder, result = run(make_experiment(), loggers=("wandb",))
    [(_, begun)] = wandb.of("init")
    assert (begun["project"], begun["group"]) == ("fewmore", folder.name)
    assert begun["config"]["recipe.pretrain.epochs"] == 2
    assert (begun["resume"], begun["reinit"]) == ("allow", "create_new")
    steps = [arguments[0] for arguments, _ in wandb.of("log")]
    assert [line["pretrain/step"] for line in steps if "pretrain/step" in line] == [1, 2]
    assert steps[-1]["sessions/accuracy"] == pytest.approx(result.last[0], abs=1e-4)
    assert wandb.of("define_metric") == [
        (("pretrain/*",), {"step_metric": "pretrain/step"}),
        (("sessions/*",), {"step_metric": "sessions/step"}),
    ]
    assert wandb.of("finish") == [((), {"exit_code": 0})]


def test_wandb_knows_a_resumed_run_by_its_folder(facts, wandb):
    for _ in range(2):
        with loggers.opened(["wandb"], facts):
            pass
    first, second = (options["id"] for _, options in wandb.of("init"))
    assert first == second == facts.identity
    with pytest.raises(Stopped), loggers.opened(["wandb"], facts):
        raise Stopped
    assert wandb.of("finish")[-1] == ((), {"exit_code": 1})


@pytest.fixture
def mlflow(monkeypatch) -> Calls:
    calls = Calls()
    new_run = SimpleNamespace(info=SimpleNamespace(run_id="run7"))
    client = SimpleNamespace(
        get_experiment_by_name=calls.function("get_experiment_by_name"),
        create_experiment=calls.function("create_experiment", "12"),
        create_run=calls.function("create_run", new_run),
        update_run=calls.function("update_run"),
        log_param=calls.function("log_param"),
        log_metric=calls.function("log_metric"),
        set_terminated=calls.function("set_terminated"),
    )
    tracking = ModuleType("mlflow.tracking")
    tracking.MlflowClient = lambda: client
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    monkeypatch.setattr(loggers, "find_spec", lambda package: True)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return calls


def test_mlflow_gets_the_curves_and_the_recipe(run, make_experiment, mlflow):
    folder, result = run(make_experiment(), loggers=("mlflow",))
    assert mlflow.of("create_experiment") == [(("fewmore",), {})]
    name = f"{folder.name}/seed0"
    assert mlflow.of("create_run") == [
        (("12",), {"run_name": name, "tags": {"run_folder": folder.name}})
    ]
    assert (("run7", "recipe.pretrain.epochs", "2"), {}) in mlflow.of("log_param")
    metrics = [(key, options["step"]) for (_, key, _), options in mlflow.of("log_metric")]
    assert metrics.count(("pretrain/loss", 1)) == metrics.count(("pretrain/loss", 2)) == 1
    (_, key, value), options = mlflow.of("log_metric")[-4]
    assert (key, options) == ("sessions/accuracy", {"step": 2})
    assert value == pytest.approx(result.last[0], abs=1e-4)
    assert mlflow.of("set_terminated") == [(("run7", "FINISHED"), {})]


def test_mlflow_goes_on_with_the_run_in_the_folder(facts, mlflow):
    with pytest.raises(Stopped), loggers.opened(["mlflow"], facts):
        raise Stopped
    with loggers.opened(["mlflow"], facts):
        pass
    assert len(mlflow.of("create_run")) == 1
    assert mlflow.of("update_run") == [(("run7",), {"status": "RUNNING"})]
    states = [arguments[1] for arguments, _ in mlflow.of("set_terminated")]
    assert states == ["FAILED", "FINISHED"]
