"""Test that launchers give what this process gives, on errors too, and survive lost workers."""

import dataclasses
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from fewmore.data.benchmarks import Task
from fewmore.errors import (
    ConfigError,
    DataError,
    FewmoreError,
    MethodError,
    StateError,
    UnknownName,
)
from fewmore.research import launchers, run_folder, runner, tuning
from fewmore.research.experiment import Experiment
from fewmore.research.launchers import processes as processes_launcher
from fewmore.research.launchers import request, worker
from fewmore.research.launchers.remote import MAX_LOSSES, Lost, Remote, Sent
from fewmore.research.results import RunResult
from fewmore.research.runner import Plan, RunOptions, Watcher

CODE = '''
import os
import signal
from pathlib import Path

from fewmore.data.benchmarks import Benchmark, BenchmarkImages
from fewmore.methods.finetune import Finetune
from fewmore.research.exam_world import TRANSFORM, make_images
from {helper} import KILLED


def load(request):
    return BenchmarkImages(make_images(8, 12, seed=0), make_images(8, 5, seed=1))


TINY = Benchmark("tiny", "Colours", 8, 4, 2, 3, "resnet8", False, TRANSFORM, load=load)


class Dying(Finetune):
    """Kill the process of seed 1 in its last session, once."""

    def learn(self, session):
        self.learnt = getattr(self, "learnt", 0) + 1
        if self.seed == 1 and self.learnt == 2 and not KILLED.exists():
            KILLED.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().learn(session)
'''
# What differs from run to run.
TIMES = (
    "machine",
    "date",
    "seconds",
    "peak_memory_mb",
    "commit",
    "command",
)


class Losses(Watcher):
    """Remember which runs lost their workers, and how many rounds and sessions were told."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.told: list[tuple[str, str, int]] = []

    def on_round(self, run: str, report: object) -> None:
        self.told.append((run, report.stage, report.round))

    def on_session(self, run: str, outcome: object) -> None:
        self.told.append((run, "", outcome.sessions))

    def on_loss(self, run: str, reason: str) -> None:
        self.lost.append(run)


def write_code(folder: Path, helper: str = "launched_helper") -> Path:
    """Write a method and a benchmark that import a module beside them; return their file."""
    killed = folder / "killed"
    (folder / f"{helper}.py").write_text(
        f"from pathlib import Path\nKILLED = Path({str(killed)!r})"
    )
    path = folder / "own.py"
    path.write_text(CODE.replace("{helper}", helper))
    return path


def run_in(
    experiment: Experiment,
    task: Task,
    runs: Path,
    watcher: Watcher | None = None,
    **options: object,
) -> tuple[Path, RunResult]:
    """Run an experiment in a new folder; every round writes a checkpoint."""
    folder = run_folder.create(runs, experiment, "own")
    plan = Plan(experiment, folder, watcher or Watcher())
    [result] = runner.run_plans([plan], task, RunOptions(checkpoint_every=0, **options))
    return folder, result


def content(folder: Path) -> dict[str, object]:
    """Return all bytes of a run folder but times and machines."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name in ("model.safetensors", "predictions.safetensors", "config.json"):
            found[name] = path.read_bytes()
        elif path.name == "metrics.jsonl":
            lines = map(json.loads, path.read_text().splitlines())
            found[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
        elif path.name == "result.json":
            raw = json.loads(path.read_text())
            found[name] = {key: value for key, value in raw.items() if key not in TIMES}
        elif path.is_file():
            found[name] = None
    return found


class Inline(Remote):
    """Compute jobs in this process, as a worker does; lose the first workers."""

    name = "inline"

    def __init__(self, losses: int = 0, folder: Path | None = None) -> None:
        super().__init__()
        self.losses = losses
        self.sent: list[str] = []
        self.done: dict[Hashable, list[object]] = {}

    def submit(self, batch: Sequence[Sent]) -> list[Hashable]:
        handles = []
        for sent in batch:
            self.sent.append(sent.job.name)
            events: list[object] = []
            outcome = worker.compute(sent.request, sent.job.folder, events.append)
            if self.losses:
                self.losses -= 1
                events[2:] = []
                outcome = Lost("the lights went out")
            handles.append(object())
            self.done[handles[-1]] = [*events, outcome]
        return handles

    def events(self, active: dict[Hashable, Sent]) -> Iterator[tuple[Hashable, object]]:
        for handle in list(active):
            for event in self.done.pop(handle):
                yield handle, event

    def cancel(self, handle: Hashable) -> None:
        self.done.pop(handle, None)


@pytest.fixture
def own(
    tmp_path: Path, tiny_recipe_for: Callable, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Experiment, Task]]:
    """Return a function: own(seeds=(0, 1)) gives an experiment of a user's code, and its task."""
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    path = write_code(tmp_path, f"helper_{tmp_path.name.replace('-', '_')}")
    (tmp_path / "killed").touch()

    def own(**fields: object) -> tuple[Experiment, Task]:
        recipe = tiny_recipe_for(f"{path}:Dying")
        experiment = Experiment(f"{path}:TINY", f"{path}:Dying", recipe, **fields)
        return experiment, runner.load_experiment(experiment, RunOptions())

    return own


# What is sent


def test_a_worker_gives_what_this_process_gives(own, tmp_path):
    experiment, task = own(seeds=(0, 1), draws=(0, 1))
    folder, expected = run_in(experiment, task, tmp_path / "local", command="fewmore")
    launcher = Inline()
    other, result = run_in(
        experiment, task, tmp_path / "inline", command="fewmore", launcher=launcher
    )
    assert content(other) == content(folder)
    assert result.machine.keys() == {*expected.machine, "launcher"}
    assert result.machine["launcher"].startswith("inline, ")
    assert result.machine["method_source"] == expected.machine["method_source"]
    assert len(launcher.sent) == 4


def test_the_validation_split_is_the_same_on_a_worker(own, tmp_path):
    experiment, task = own(draws=(0, 1), validation=True)
    folder, _ = run_in(experiment, task, tmp_path / "local")
    other, _ = run_in(experiment, task, tmp_path / "inline", launcher=Inline())
    assert content(other) == content(folder)


def test_code_of_a_user_travels_with_the_modules_beside_it(own, tmp_path):
    experiment, task = own()
    plans = [Plan(experiment, tmp_path / "run")]
    [job] = runner._jobs(plans, task, RunOptions(), True, True)
    text = request.Packer(0, 1).pack(job)
    script = (
        "import json, sys\n"
        "from fewmore.research.launchers import request\n"
        "from fewmore.research.experiment import Experiment\n"
        "experiment = Experiment.from_json(request.unpack_config(json.load(sys.stdin)))\n"
        "from fewmore.methods import find\n"
        "print(find(experiment.method).load().__name__, experiment.benchmark)\n"
    )
    for path in tmp_path.glob("*.py"):
        path.unlink()
    done = subprocess.run(
        [sys.executable, "-c", script], input=text, capture_output=True, text=True, check=True
    )
    name, _, place = done.stdout.strip().partition(" ")
    assert name == "Dying"
    assert place.startswith(str(tmp_path / "cache" / "code"))


def test_a_file_behind_a_link_travels_under_the_name_that_workers_are_told(tmp_path):
    (tmp_path / "v3.py").write_text("class Mine: ...")
    link = tmp_path / "latest.py"
    link.symlink_to("v3.py")
    files = {}
    assert request._pack_code(f"{link}:Mine", files) == "{code}/0/v3.py:Mine"
    assert files == {"0/v3.py": "class Mine: ..."}


def test_a_list_of_images_travels_in_its_benchmark_file(tmp_path):
    (tmp_path / "new.txt").write_text("7\n\n12\n")
    sessions = [{"classes": ["a"]}, {"classes": ["b"], "images": "new.txt"}]
    path = tmp_path / "few.json"
    path.write_text(json.dumps({"benchmark": "glyphs", "sessions": sessions}))
    files = {}
    place = request._pack_benchmark(str(path), files)
    [(name, text)] = files.items()
    assert place == request.CODE + name
    assert json.loads(text)["sessions"] == [sessions[0], {**sessions[1], "images": ["7", "12"]}]


def test_other_code_and_other_images_are_refused(own, tmp_path, monkeypatch):
    experiment, task = own()
    less = dataclasses.replace(task, test=task.test.select(torch.arange(20)))
    with pytest.raises(DataError, match="are not those of the machine"):
        run_in(experiment, less, tmp_path / "runs", launcher=Inline())
    monkeypatch.setattr(worker, "source_digest", lambda: "another")
    with pytest.raises(ConfigError, match="install the same code"):
        run_in(experiment, task, tmp_path / "runs", launcher=Inline())


def test_an_error_of_a_worker_is_the_error_of_the_run(own, tmp_path, monkeypatch):
    experiment, task = own(seeds=(0, 1, 2))

    def fail(*arguments: object) -> None:
        raise MethodError("no such thing")

    monkeypatch.setattr(worker, "_compute", fail)
    with pytest.raises(MethodError, match=r"^on .*: no such thing$"):
        run_in(experiment, task, tmp_path / "runs", launcher=Inline())
    assert worker.Failed.of(UnknownName("method", "x", ["y"])).error().args[0].endswith("y")
    assert "ZeroDivisionError" in str(worker.Failed.of(ZeroDivisionError()).error())


# Lost workers


def test_a_run_that_loses_its_worker_is_sent_again(own, tmp_path):
    experiment, task = own()
    folder, _ = run_in(experiment, task, tmp_path / "local")
    watcher = Losses()
    launcher = Inline(losses=2)
    other, _ = run_in(experiment, task, tmp_path / "inline", watcher, launcher=launcher)
    assert content(other) == content(folder)
    assert watcher.lost == ["seed0"] * 2
    assert len(set(watcher.told)) == len(watcher.told), "nothing is told twice"


def test_a_run_that_gets_no_further_is_given_up(own, tmp_path):
    experiment, task = own()
    launcher = Inline(losses=99)
    with pytest.raises(StateError, match="lights went out"):
        run_in(experiment, task, tmp_path / "runs", launcher=launcher)
    assert len(launcher.sent) == MAX_LOSSES


# Commands


def test_all_methods_of_a_command_are_sent_at_once(own, tmp_path, shell, monkeypatch, capsys):
    own()
    monkeypatch.chdir(tmp_path)
    launcher = Inline()
    monkeypatch.setattr(launchers, "check", lambda name, **settings: None)
    monkeypatch.setattr(launchers, "build", lambda name, **settings: launcher)
    begin = "fewmore run own.py:TINY -m decoupled-cosine -m finetune --recipe quick "
    small = "--set pretrain.epochs=2 --set pretrain.batch=16 --set finetune.session.epochs=1 "

    def fewmore(words: str) -> str:
        assert shell((begin + small + words).split()) == 0
        return capsys.readouterr().out

    fewmore("--fresh --runs here")
    shown = fewmore("--fresh --runs there --launcher ray")
    assert launcher.sent == ["seed0", "seed0"]
    assert "finetune, seed0: " in shown
    assert "(2 of 2 runs done" in shown
    here, there = (sorted(Path(name).glob("*/result.json")) for name in ("here", "there"))
    assert [content(path.parent) for path in there] == [content(path.parent) for path in here]
    assert len(list(Path("there").glob("*/report.html"))) == 2
    found = json.loads(fewmore("--json --runs there --launcher ray --resume"))
    assert [result["method"] for result in found] == ["decoupled-cosine", "finetune"]


def test_trials_of_images_of_several_sizes_are_refused(tiny_folder, tmp_path):
    search = tuning.Search(f"folder:{tiny_folder}", "cec", {"transform.resize": ["92", "100"]})
    with pytest.raises(ConfigError, match="tune this setting with --launcher local"):
        tuning.tune(search, tmp_path / "tune", options=RunOptions(launcher=Inline()))
    assert not (tmp_path / "tune").exists()


# Processes


def test_processes_give_the_same_bytes_though_one_is_killed(own, tmp_path):
    experiment, task = own(seeds=(0, 1, 2))
    folder, expected = run_in(experiment, task, tmp_path / "local")
    (tmp_path / "killed").unlink()
    processes = launchers.build("processes", cpus_per_run=torch.get_num_threads())
    watcher = Losses()
    options = {"launcher": processes, "parallel": 2}
    other, result = run_in(experiment, task, tmp_path / "processes", watcher, **options)
    assert watcher.lost == ["seed1"]
    assert content(other) == content(folder)
    assert result.accuracy == expected.accuracy
    assert multiprocessing.active_children() == [], "they end with the last run"


def test_an_error_in_a_process_is_the_error_of_the_run(own, tmp_path):
    experiment, task = own(seeds=(0,))
    wrong = dataclasses.replace(
        experiment, recipe=dataclasses.replace(experiment.recipe, weights=str(tmp_path / "none"))
    )
    with pytest.raises(FewmoreError, match=r"on .*none"):
        run_in(wrong, task, tmp_path / "runs", launcher=launchers.build("processes"))
    assert multiprocessing.active_children() == []


def test_as_many_processes_as_cores_have_room(monkeypatch):
    monkeypatch.setattr(processes_launcher, "count_cores", lambda: 9)
    assert launchers.build("processes").most == 9
    assert launchers.build("processes", cpus_per_run=4).most == 2
    assert launchers.build("processes", cpus_per_run=16).most == 1


def test_processes_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="PyTorch sees no GPU here"):
        launchers.build("processes", gpus_per_run=0.2)


def test_processes_use_all_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    started = []
    monkeypatch.setattr(
        processes_launcher, "_Child", lambda gpu: started.append(gpu) or len(started)
    )
    quarter = launchers.build("processes", gpus_per_run=0.25)
    assert quarter.most == 8
    for _ in range(3):
        quarter._start()
    quarter._forget(2)
    quarter._start()
    assert started == [0, 1, 0, 1], "the place of the second, which has ended, is taken again"


# Slurm


def test_slurm_gives_the_same_bytes_though_a_job_is_killed(own, tmp_path):
    experiment, task = own(seeds=(0, 1))
    folder, expected = run_in(experiment, task, tmp_path / "local")
    (tmp_path / "killed").unlink()
    slurm = launchers.build("slurm", slurm={"cluster": "local"})
    watcher = Losses()
    other, result = run_in(experiment, task, tmp_path / "slurm", watcher, launcher=slurm)
    assert watcher.lost == ["seed1"]
    assert content(other) == content(folder)
    assert result.accuracy == expected.accuracy
    assert not list(tmp_path.rglob("*.events"))


# Options

COMMANDS = {
    "run": "run glyphs -m cec",
    "tune": "tune glyphs -m cec --grid pretrain.lr=0.1",
    "reproduce": "reproduce comparison --benchmark glyphs",
}


@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        ("run", "--launcher rai", "no launcher is named 'rai': did you mean ray?"),
        ("run", "--gpus-per-run 0.2", "--gpus-per-run is not for --launcher local"),
        ("tune", "--gpus-per-run 0.2", "--gpus-per-run is not for --launcher local"),
        ("reproduce", "--gpus-per-run 0.2", "--gpus-per-run is not for --launcher local"),
        ("run", "--address auto", "or add --launcher ray"),
        ("run", "--launcher slurm --address auto", "--address is not for --launcher slurm"),
        ("run", "--launcher slurm", "there is no Slurm on this machine"),
        ("tune", "--launcher slurm --gpus-per-run 0.2", "Slurm gives whole GPUs"),
        ("run", "--launcher slurm --slurm partition", "write it as name=value"),
        ("reproduce", "--launcher slurm --slurm cluster=moon", "it is slurm or local"),
        ("run", "--launcher processes --gpus-per-run 2", "a process uses one GPU"),
        ("run", "--launcher processes --address auto", "or add --launcher ray"),
        ("run", "--launcher slurm --device cuda", "--device cuda is not for --launcher slurm"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    command, words, sentence, shell, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert shell(f"fewmore {COMMANDS[command]} {words}".split()) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "extra"), [("ray", "cluster"), ("slurm", "slurm")])
def test_a_missing_package_is_named(name, extra, monkeypatch):
    monkeypatch.setattr(launchers, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf'pip install "fewmore\[{extra}\]"'):
        launchers.build(name)


def test_a_part_of_several_gpus_is_refused():
    with pytest.raises(ConfigError, match="part of one GPU or whole GPUs"):
        Remote(gpus_per_run=1.5)
    assert Remote(gpus_per_run=0.2).side_by_side == 5
    assert str(Remote(0.0, 2)) == ", 2 CPUs a run"


def test_nothing_of_ray_and_submitit_is_imported_before_it_is_needed():
    script = (
        "import sys, fewmore.research.runner, fewmore.research.launchers.remote, fewmore.cli\n"
        "assert not {'ray', 'submitit'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# Ray


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Import Ray, and disconnect from it at the end."""
    ray = pytest.importorskip("ray", reason="needs Ray, which make soak installs")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    yield ray
    ray.shutdown()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "no Ray cluster answers there"),
        ("nowhere.invalid:1", "no Ray cluster answers there"),
        ("auto", "Ray cannot be reached"),
        ("ray://127.0.0.1:1", "nothing is sent through a Ray client"),
    ],
)
@pytest.mark.soak
def test_a_wrong_address_is_one_sentence(address, sentence, ray, monkeypatch):
    def init(address: str, **options: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nMore")

    monkeypatch.setattr(ray, "init", init)  # there may be a cluster on this machine
    with pytest.raises(ConfigError, match=f"^--address {address}: .*{sentence}"):
        launchers.build("ray", address=address)


@pytest.mark.soak
def test_ray_gives_the_same_bytes_though_a_worker_is_killed(own, tmp_path, ray):
    experiment, task = own(seeds=(0, 1))
    folder, _ = run_in(experiment, task, tmp_path / "local")
    (tmp_path / "killed").unlink()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    watcher = Losses()
    launcher = launchers.build("ray", cpus_per_run=1)
    other, _ = run_in(experiment, task, tmp_path / "ray", watcher, launcher=launcher)
    assert watcher.lost == ["seed1"]
    assert content(other) == content(folder)
    assert launcher.notes() == []
    assert "the runs wait" in launchers.build("ray", gpus_per_run=1).notes()[0]

    # Ctrl-C leaves finished runs whole; the others go on from what has come back of them.
    class Interrupted(Watcher):
        def on_session(self, run: str, outcome: object) -> None:
            if run == "seed1" and outcome.sessions == 2:
                raise KeyboardInterrupt

    third = run_folder.create(tmp_path / "interrupted", experiment, "own")
    options = RunOptions(checkpoint_every=0, parallel=1, launcher=launcher)
    with pytest.raises(KeyboardInterrupt):
        runner.run_plans([Plan(experiment, third, Interrupted())], task, options)
    assert (third / "seed0" / "model.safetensors").exists()
    assert (third / "seed1" / "checkpoint.safetensors").exists()
    runner.run_plans([Plan(experiment, third)], task, RunOptions())
    assert content(third) == content(folder)


GLYPHS = """
    run glyphs -m decoupled-cosine --seeds 8 --draws 3 --base 20 --way 40 --fresh --quiet
    --set pretrain.epochs=1
"""


@pytest.mark.soak
def test_24_runs_on_two_nodes_one_of_which_is_killed(
    tmp_path, ray, shell, monkeypatch, record_property
):
    """Compare all bytes with those of runs in this process."""
    from ray.cluster_utils import Cluster

    from fewmore.cli import live

    monkeypatch.chdir(tmp_path)

    def fewmore(*words: str) -> Path:
        assert shell(["fewmore", *GLYPHS.split(), *words]) == 0
        [folder] = Path(words[1]).iterdir()
        return folder

    expected = content(fewmore("--runs", "local"))
    node_args = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(True, head_node_args={**node_args, "include_dashboard": False})
    second = cluster.add_node(**node_args)
    begun: set[str] = set()
    ended: set[str] = set()
    lost: list[str] = []

    class Killer(live.LiveWatcher):
        """Kill the second node once both nodes work, after a few runs."""

        def on_round(self, run: str, report: object) -> None:
            super().on_round(run, report)
            begun.add(run)
            if len(ended) >= 6 and len(begun - ended) == 2 and not lost:
                cluster.remove_node(second, allow_graceful=False)
                lost.append("a node")

        def on_session(self, run: str, outcome: object) -> None:
            super().on_session(run, outcome)
            if outcome.sessions == self.sessions:
                ended.add(run)

        def on_loss(self, run: str, reason: str) -> None:
            super().on_loss(run, reason)
            lost.append(run)

    monkeypatch.setattr(live, "LiveWatcher", Killer)
    try:
        words = ("--launcher", "ray", "--address", cluster.address)
        found = content(fewmore("--runs", "ray", *words))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert len(lost) == 2, "a run was on the node"
    models = [name for name in found if name.endswith("model.safetensors")]
    compared = [name for name in expected if expected[name] is not None]
    counts = {
        "runs": len(models),
        "nodes killed, of 2": lost.count("a node"),
        "runs sent again": len(lost) - 1,
        "files compared with local ones": len(compared),
        "files that differ": sum(found.get(name) != expected[name] for name in compared),
    }
    for name, count in counts.items():
        record_property(name, count)
    assert len(models) == 24
    assert found == expected
