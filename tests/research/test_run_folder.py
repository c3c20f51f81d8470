"""Test how run folders are created, found and resumed."""

import dataclasses
import json
import os

import pytest

from fewmore.errors import CheckpointError, DataError
from fewmore.research import run_folder


def test_the_config_says_what_was_asked_for(make_experiment, tmp_path, tiny_recipe):
    experiment = make_experiment(
        settings={"pretrain.epochs": "2"}, seeds=(0, 1), draws=(0, 1, 2), way=2
    )
    config = json.loads((run_folder.create(tmp_path, experiment) / "config.json").read_text())
    assert config["config"] == 1
    assert (config["benchmark"], config["method"]) == ("tiny", "decoupled-cosine")
    assert (config["way"], config["base"]) == (2, None)
    assert (config["seeds"], config["draws"]) == ([0, 1], [0, 1, 2])
    assert config["settings"] == {"pretrain.epochs": "2"}
    assert config["recipe"]["pretrain"]["epochs"] == tiny_recipe.pretrain.epochs
    assert config["recipe"]["transform"]["size"] == 8


def test_two_folders_in_the_same_second_differ(make_experiment, tmp_path):
    folders = {run_folder.create(tmp_path, make_experiment()) for _ in range(3)}
    assert len(folders) == 3
    assert all(folder.name.startswith("tiny-decoupled-cosine-") for folder in folders)


def test_names_of_folders_have_no_slashes(make_experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "own_code", lambda _: {})  # there is no such file
    experiment = dataclasses.replace(
        make_experiment(), method="some/where/mine.py:Mine", benchmark="folder:/my/birds"
    )
    folder = run_folder.create(tmp_path, experiment)
    assert folder.parent == tmp_path
    assert folder.name.startswith("folder--my-birds-mine-")


def test_a_file_in_place_of_the_folder_is_refused(make_experiment, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="--runs"):
        run_folder.create(tmp_path / "file", make_experiment())
    with pytest.raises(CheckpointError, match="--runs"):
        run_folder.ensure_parent(tmp_path / "file")


def test_only_a_folder_in_which_no_run_began_is_discarded(make_experiment, tmp_path):
    unused = run_folder.create(tmp_path, make_experiment())
    refused = run_folder.create(tmp_path, make_experiment())
    (refused / "seed0").mkdir()
    used = run_folder.create(tmp_path, make_experiment())
    (used / "seed0").mkdir()
    (used / "seed0" / "metrics.jsonl").touch()
    for folder in (unused, refused, used):
        run_folder.discard_unused(folder)
    assert list(tmp_path.iterdir()) == [used]


def test_only_a_run_of_the_same_settings_is_resumed(make_experiment, run, tmp_path):
    runs = tmp_path / "runs"
    assert run_folder.find(runs, [make_experiment()], prefer_finished=False) == [None]
    folder, _ = run(make_experiment())
    assert run_folder.find(runs, [make_experiment()], prefer_finished=False) == [folder]
    assert run_folder.find(runs, [make_experiment(seeds=(1,))], prefer_finished=False) == [None]


def test_the_newest_unfinished_folder_is_resumed(make_experiment, tmp_path):
    old = run_folder.create(tmp_path, make_experiment())
    new = run_folder.create(tmp_path, make_experiment())
    os.utime(old / "config.json", (1, 1))
    os.utime(new / "config.json", (2, 2))
    assert run_folder.find(tmp_path, [make_experiment()], prefer_finished=False) == [new]
    (new / "result.json").write_text("")
    assert run_folder.find(tmp_path, [make_experiment()], prefer_finished=False) == [old]


def test_of_several_experiments_the_finished_stay_and_the_others_begin(make_experiment, tmp_path):
    experiments = [make_experiment(name) for name in ("finetune", "linear", "cosine")]
    finished = run_folder.create(tmp_path, experiments[0])
    (finished / "result.json").write_text("")
    assert run_folder.find(tmp_path, experiments, prefer_finished=False) == [finished, None, None]
    unfinished = run_folder.create(tmp_path, experiments[1])
    assert run_folder.find(tmp_path, experiments, prefer_finished=False) == [
        finished,
        unfinished,
        None,
    ]
    folders = [finished, unfinished, run_folder.create(tmp_path, experiments[2])]
    for folder in folders:
        (folder / "result.json").write_text("")
    assert run_folder.find(tmp_path, experiments, prefer_finished=False) == folders


def test_a_finished_folder_is_found_before_an_unfinished_one(make_experiment, tmp_path):
    old = run_folder.create(tmp_path, make_experiment())
    new = run_folder.create(tmp_path, make_experiment())
    os.utime(old / "config.json", (1, 1))
    experiments = [make_experiment(), make_experiment("finetune")]
    assert run_folder.find(tmp_path, experiments) == [new, None]
    (old / "result.json").write_text("")
    assert run_folder.find(tmp_path, experiments[:1]) == [old]


def test_settings_in_another_order_are_the_same_run(make_experiment, tmp_path):
    one = {"pretrain.epochs": "2", "pretrain.lr": "0.1"}
    folder = run_folder.create(tmp_path, make_experiment(settings=one))
    damaged = run_folder.create(tmp_path, make_experiment())
    (damaged / "config.json").write_text("{")
    other = make_experiment(settings=dict(reversed(one.items())))
    assert run_folder.find(tmp_path, [other]) == [folder]
    assert run_folder.find(tmp_path, [make_experiment(settings={"pretrain.lr": "0.1"})]) == [None]


def test_a_folder_is_run_by_one_process_at_a_time(make_experiment, run, tmp_path):
    folder = run_folder.create(tmp_path / "runs", make_experiment())
    with (
        run_folder.in_use(folder),
        pytest.raises(CheckpointError, match="is being run by another process: wait"),
    ):
        run(make_experiment(), folder=folder)
    assert {path.name for path in folder.iterdir()} == {"config.json"}
    assert run(make_experiment(), folder=folder)[1].runs == 1


def test_where_there_are_no_locks_runs_go_on(make_experiment, tmp_path, monkeypatch):
    def acquire(*args, **options):
        raise OSError("no locks")

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    folder = run_folder.create(tmp_path, make_experiment())
    with run_folder.in_use(folder), run_folder.in_use(folder):
        assert folder.exists()


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe"])
def test_a_damaged_config_is_that_of_no_experiment(damage, make_experiment, tmp_path):
    experiment = make_experiment()
    damaged, whole = (run_folder.create(tmp_path, experiment) for _ in range(2))
    (damaged / "config.json").write_bytes(damage)
    assert run_folder.find(tmp_path, [experiment]) == [whole]


def test_a_damaged_record_of_the_code_is_of_no_code(make_experiment, tmp_path):
    experiment = make_experiment()
    folder = run_folder.create(tmp_path, experiment)
    assert run_folder.find(tmp_path, [experiment]) == [folder]
    (folder / "code.json").write_text("{")
    assert run_folder.find(tmp_path, [experiment]) == [None]
    assert run_folder.find_of_other_code(tmp_path, experiment) == [folder]
    with pytest.raises(DataError, match=r"code\.json is not JSON .*: restore it, or run again"):
        run_folder.read_experiment(folder / "config.json")
