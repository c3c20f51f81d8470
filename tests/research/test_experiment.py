"""Test that the config of a run can be read again."""

import json

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import ConfigError, UnknownName
from fewmore.methods import METHODS
from fewmore.research.experiment import Experiment
from fewmore.research.recipes import RECIPES, recipe


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", RECIPES)
def test_what_was_written_is_read(method, name):
    made = recipe(name, BENCHMARKS["cub200"], method)
    experiment = Experiment("cub200", method, made, {"a.b": "1,2"}, (0, 3), (None, 2), way=5)
    assert Experiment.from_json(experiment.to_json()) == experiment


def changed(*path: str, value: object = None, remove: bool = False) -> str:
    raw = json.loads(
        Experiment("glyphs", "cec", recipe(None, BENCHMARKS["glyphs"], "cec")).to_json()
    )
    group = raw
    for key in path[:-1]:
        group = group[key]
    if remove:
        del group[path[-1]]
    else:
        group[path[-1]] = value
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (changed("colour", value=1), "c.json has unknown keys colour"),
        (changed("recipe", "method", "pseudo", "x", value=1), "recipe: method: pseudo has unknown"),
        (changed("recipe", "pretrain", "lr", remove=True), "recipe: pretrain has no lr"),
        (changed("recipe", "pretrain", "epochs", value="x"), "epochs is 'x', not a whole number"),
        (changed("recipe", "pretrain", value=3), "recipe: pretrain is 3, not a group"),
        (changed("recipe", "pretrain", "epochs", value=0), "epochs must be at least 1"),
        (changed("seeds", value="x"), "seeds is 'x', not "),
        (changed("config", value=2), "not the config of a run"),
        ("[]", "not the config of a run"),
        ("{", "c.json is not JSON"),
    ],
)
def test_a_wrong_config_is_refused_in_a_sentence(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Experiment.from_json(text, "c.json")


def test_a_config_of_an_unknown_method():
    with pytest.raises(UnknownName, match="no method is named 'cecc'"):
        Experiment.from_json(changed("method", value="cecc"))
