"""Test that users' files are recorded as they were loaded, and found again."""

import dataclasses
import json
from pathlib import Path

import pytest

from fewmore import plugins
from fewmore.methods import find_features
from fewmore.research import run_folder
from fewmore.research.own_code import FEATURES, own_code, with_recorded_files

FILE = """
from dataclasses import dataclass
from fewmore.training.pretrain import PretrainConfig

@dataclass(frozen=True)
class Own(PretrainConfig):
    epochs: int = 3
"""


def test_features_are_recorded_as_they_were_loaded(make_experiment, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    name = f"{path}:Own"
    loaded = plugins.code_hash(path)
    experiment = make_experiment()
    recipe = dataclasses.replace(
        experiment.recipe, features=name, pretrain=find_features(name).load()()
    )
    experiment = dataclasses.replace(experiment, recipe=recipe)
    path.write_text(FILE.replace("3", "4"))
    assert own_code(experiment)[FEATURES] == {"file": str(path), "sha256": loaded}


@pytest.mark.parametrize("typed", ["./mine.py:Mine", "mine.py:Mine"])
def test_a_file_that_is_found_keeps_the_name_that_was_typed(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("class Mine: ...")
    recorded = {
        "method_source": {
            "file": str(tmp_path / "mine.py"),
            "sha256": plugins.code_hash(Path("mine.py")),
        }
    }
    config = json.dumps({"method": typed, "recipe": {}})
    assert with_recorded_files(config, recorded) == config


def test_a_result_is_written_though_its_feature_file_is_broken(make_experiment, run, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    name = f"{path}:Own"
    loaded = plugins.code_hash(path)
    experiment = make_experiment()
    pretrain = find_features(name).load()(**dataclasses.asdict(experiment.recipe.pretrain))
    recipe = dataclasses.replace(experiment.recipe, features=name, pretrain=pretrain)
    experiment = dataclasses.replace(experiment, recipe=recipe)
    folder = run_folder.create(tmp_path / "runs", experiment)
    path.write_text("a syntax error")
    _, result = run(experiment, folder=folder)
    assert result.machine[FEATURES]["sha256"] == loaded
