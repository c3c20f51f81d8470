"""Test the recipes of all benchmarks and methods."""

import dataclasses

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import UnknownName
from fewmore.methods import METHODS
from fewmore.research.recipes import RECIPES, recipe

CIFAR = BENCHMARKS["cifar100"]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_recipe_can_be_made(name, benchmark, method):
    entry = BENCHMARKS[benchmark]
    made = recipe(name, entry, method)
    assert made.name == name
    assert made.backbone == entry.backbone
    # `mild` has milder crops
    assert dataclasses.replace(made.transform, scale=entry.transform.scale) == entry.transform
    again = recipe(name, entry, method)
    assert made == again
    assert hash(made) == hash(again)


def test_recipes_are_frozen():
    made = recipe("official", CIFAR, "decoupled-cosine")
    for config, field in (
        (made, "backbone"),
        (made.pretrain, "epochs"),
        (made.method, "similarity"),
        (made.method.session, "lr"),
        (made.transform, "size"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field, 1)


@pytest.mark.parametrize(
    ("benchmark", "milestones", "weights"),
    [
        ("cifar100", (60, 70), None),
        ("miniimagenet", (40, 70), None),
        ("cub200", (30, 40, 60, 80), "imagenet"),
        ("glyphs", (60, 70), None),
    ],
)
def test_the_official_recipe_of_each_benchmark(benchmark, milestones, weights):
    made = recipe("official", BENCHMARKS[benchmark], "decoupled-cosine")
    assert (made.pretrain.milestones, made.weights) == (milestones, weights)
    assert (made.pretrain.epochs, made.pretrain.batch, made.pretrain.lr) == (100, 128, 0.1)
    assert (made.pretrain.momentum, made.pretrain.nesterov, made.pretrain.weight_decay) == (
        0.9,
        True,
        5e-4,
    )


def test_sessions_by_method():
    configs = {name: recipe("official", CIFAR, name).method for name in METHODS}
    learnt = {
        name: config.session for name, config in configs.items() if hasattr(config, "session")
    }
    assert [name for name, session in learnt.items() if not session.data_init] == [
        "finetune",
        "linear",
        "cosine",
        "icarl",
        "eeil",
        "topic",
    ]
    assert learnt["finetune"].lr < learnt["linear"].lr


def test_each_benchmark_has_a_default_recipe():
    assert recipe(None, CIFAR, "cosine").name == "official"
    assert recipe(None, BENCHMARKS["glyphs"], "cosine").name == "quick"
    assert (
        recipe("quick", CIFAR, "cosine").pretrain.epochs
        < recipe("official", CIFAR, "cosine").pretrain.epochs / 5
    )


def test_an_unknown_recipe_is_suggested():
    with pytest.raises(UnknownName, match="no recipe is named 'oficial': did you mean official"):
        recipe("oficial", CIFAR, "cosine")
