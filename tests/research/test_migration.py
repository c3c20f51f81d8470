"""Test that results and run folders from before the first release are read in today's words."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fewmore.cli import app
from fewmore.data.benchmarks import Benchmark, Task
from fewmore.data.splits import sample_split
from fewmore.research import results
from fewmore.research.reporting import html, tables
from fewmore.research.results.migration import migrate
from fewmore.training.checkpoint import read_state

CECIL_RUN = Path(__file__).parent / "data" / "cecil-run"  # without its models, which are large
OLD = {
    "command": "cecil run cifar100 -m topic --set topic.rehearse=false --set session.lr=0.1",
    "settings": {"topic.rehearse": "false", "session.lr": "0.1"},
    "extra": {"pictures_kept": [[1.0]], "cosine_after_pil": [[2.0]]},
    "keeps": "one picture a node",
}
NEW = {
    "command": "fewmore run cifar100 -m topic --set rehearse=false --set session.lr=0.1",
    "settings": {"rehearse": "false", "session.lr": "0.1"},
    "extra": {"images_kept": [[1.0]], "cosine_after_pil": [[2.0]]},
    "keeps": "one image a node",
}


def test_old_words_become_new_ones_and_all_else_stays():
    before = json.dumps(OLD)
    assert migrate({**OLD, "seeds": [0]}) == {**NEW, "seeds": [0]}
    assert json.dumps(OLD) == before, "the object itself is not changed"
    assert migrate(NEW) == NEW


def test_a_current_result_keeps_the_words_of_its_author():
    own = {**NEW, "keeps": "one picture a node", "extra": {"pictures_kept": [[1.0]]}}
    assert migrate(own) == own


@pytest.mark.parametrize("key", ["settings", "extra", "keeps", "command"])
def test_damaged_fields_are_left_to_the_reader(key):
    damaged = {**OLD, key: 3}
    assert migrate(damaged)[key] == 3
    assert key not in migrate({name: value for name, value in OLD.items() if name != key})


def test_an_old_result_is_a_current_one_once_it_is_read(make_result):
    result = make_result(method="topic", extra=("pictures_kept",))
    result = replace(result, command=OLD["command"], keeps=OLD["keeps"], settings=OLD["settings"])
    read = results.from_json(results.to_json(result))
    assert (read.command, read.keeps, read.settings) == (
        NEW["command"],
        NEW["keeps"],
        NEW["settings"],
    )
    assert list(read.extra) == ["images_kept"]
    assert results.from_json(results.to_json(read)) == read


def test_an_old_run_folder_is_compared():
    done = CliRunner().invoke(app, ["compare", str(CECIL_RUN)], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    assert "icarl" in done.stdout
    assert "keeps 12 images" in done.stdout
    assert "picture" not in done.stdout


def test_an_old_run_folder_has_a_report(tmp_path, tiny_images, tiny_transform):
    folder = tmp_path / "run"
    shutil.copytree(CECIL_RUN, folder)
    train = tiny_images(6, 10)
    benchmark = Benchmark("birds", "Birds", 6, 4, 2, 5, "resnet8", False, tiny_transform)
    task = Task(benchmark, train, tiny_images(6, 2, seed=1), sample_split(train, 4, 2, 5))
    page = html.write(folder, task).read_text()
    assert "<pre>fewmore run folder:photos" in page
    assert "Keeps of old images: a few images a class." in page
    assert "cecil" not in page
    assert "picture" not in page


def test_old_predictions_are_read():
    state = read_state(CECIL_RUN / "seed0" / "predictions.safetensors")
    assert set(state) == {"labels", "session_of_class", "predictions", "confidence"}
    assert state["predictions"][""].shape == (2, 12)


def test_an_old_result_without_the_seconds_of_a_shared_stage_1_says_so(make_result):
    seconds = (("pretrain (shared)", 0.0), ("share of the wall clock", 12.0))
    old = make_result(seconds=seconds, seeds=(0, 1))
    assert old.total_seconds == (12.0, 12.0)
    assert tables.seconds_text(old) == "12 (without the shared stage 1)"
    notes = tables.build([old]).notes
    assert (
        "2 runs took over stage 1 from another run; the seconds of training it are not included"
        in notes
    )
