"""Test that results of earlier recipes are found, and no others."""

from dataclasses import replace

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.research.outdated import recipe_changes
from fewmore.research.recipes import recipe
from fewmore.research.reporting.tables import build
from fewmore.research.setting_list import setting_defaults, setting_values


@pytest.fixture
def measure(make_result):
    """Return a function that makes a result of today's recipe; `then` is what was otherwise."""

    def measure(method="cec", settings=None, then=None, **about):
        texts = [f"{name}={text}" for name, text in (settings or {}).items()]
        today = setting_values(recipe("official", BENCHMARKS["cifar100"], method, texts))
        assert set(then or {}) <= set(today)
        return make_result(
            method=method,
            settings=settings or {},
            all_settings={**today, **(then or {})},
            **{"recipe": "official", **about},
        )

    return measure


def without(result, name):
    rest = {key: value for key, value in result.all_settings.items() if key != name}
    assert len(rest) == len(result.all_settings) - 1
    return replace(result, all_settings=rest)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("cec", {}),
        ("teen", {}),
        ("cec", {"pretrain.epochs": "3", "pseudo.lr": "0.5"}),
        ("cec", {"features": "closer"}),
    ],
)
def test_a_result_of_todays_recipe_has_no_changes(measure, method, settings):
    assert recipe_changes(measure(method, settings)) == []


def test_changed_settings_are_named_with_both_values(measure):
    earlier = measure(then={"pretrain.epochs": "90", "pseudo.lr": "0.5"})
    assert sorted(map(str, recipe_changes(earlier))) == [
        "pretrain.epochs was 90, is 100",
        "pseudo.lr was 0.5, is 0.0002",
    ]
    # What was set by hand is no change of the recipe.
    assert recipe_changes(measure(settings={"pretrain.epochs": "90"})) == []


def test_a_setting_that_came_later_had_its_default_before(measure):
    assert recipe_changes(without(measure("cec"), "transform.cutout_color")) == []
    [change] = recipe_changes(without(measure("teen"), "transform.cutout_color"))
    assert str(change) == "transform.cutout_color was mean, is black"


def test_the_default_is_that_of_the_class_that_introduces_a_setting():
    of_closer = recipe("official", BENCHMARKS["cifar100"], "closer")
    assert setting_values(of_closer)["pretrain.epochs"] == "200"
    assert setting_defaults(of_closer)["pretrain.epochs"] == "100"


def test_what_cannot_be_compared_has_no_changes(measure):
    earlier = measure(then={"pretrain.epochs": "90"})
    assert recipe_changes(earlier)
    assert recipe_changes(replace(earlier, all_settings={})) == [], "it was not recorded"
    for about in (
        {"benchmark": "birds.json"},
        {"method": "mine.py:Mine"},
        {"recipe": "no more"},
        {"settings": {"features": "mine.py:Mine"}},
        {"settings": {"no.more": "1"}},
        {"sessions": earlier.sessions[:-1]},
    ):
        assert recipe_changes(replace(earlier, **about)) == [], about


def test_tables_name_rows_of_an_earlier_recipe(measure):
    rows = [measure(), measure("teen", then={"alpha": "0.9", "pretrain.milestones": "60,70"})]
    notes = [note for note in build(rows).notes if "earlier recipe" in note]
    assert notes == [
        "teen: measured with an earlier recipe: alpha was 0.9, is 0.1; "
        "pretrain.milestones was 60,70, is empty"
    ]
    assert not any("earlier recipe" in note for note in build(rows[:1]).notes)


def test_tables_name_rows_without_the_fused_layers_of_a_gpu(measure):
    failed = {"accel": "graphs alone: TypeError: 27 given"}
    rows = [measure(), replace(measure("teen"), machine=failed), replace(measure(), machine={})]
    assert [note for note in build(rows).notes if "fused" in note] == [
        "teen: trained with PyTorch's own layers, as the fused ones failed to load: "
        "TypeError: 27 given"
    ]
    assert not any("fused" in note for note in build(rows[:1]).notes)
