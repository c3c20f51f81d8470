"""Find results that were measured with other settings than their recipe has today.

Recipes change between versions of fewmore. A result holds all settings of the recipe that was run,
so that a row that `fewmore run` would no longer give is known as such.
"""

from dataclasses import dataclass

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import FewmoreError
from fewmore.methods import FEATURES, METHODS
from fewmore.methods.base import Recipe
from fewmore.research import recipes
from fewmore.research.results import RunResult, settings_of
from fewmore.research.results.schema import FEATURES_SETTING
from fewmore.research.setting_list import setting_defaults, setting_values


@dataclass(frozen=True)
class Change:
    """Hold a setting of a recipe, as it was in a result and as it is today."""

    name: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.name} was {self.then or 'empty'}, is {self.now or 'empty'}"


def recipe_changes(result: RunResult) -> list[Change]:
    """Return the settings in which a result differs from its recipe today.

    Only results of fewmore's own methods and benchmarks, with the benchmark's own sessions, can be
    compared, and none from before the settings were recorded. A setting that came later is taken to
    have had its default, as a new setting changes nothing by itself.
    """
    recipe = _recipe_today(result) if result.all_settings else None
    if recipe is None:
        return []
    before = {**setting_defaults(recipe), **result.all_settings}
    return [
        Change(name, before[name], now)
        for name, now in setting_values(recipe).items()
        if before[name] != now
    ]


def _recipe_today(result: RunResult) -> Recipe | None:
    benchmark = BENCHMARKS.get(result.benchmark)
    known = result.method in METHODS and result.settings.get(FEATURES_SETTING, "cec") in FEATURES
    if benchmark is None or not known:
        return None
    later = range(1, benchmark.sessions)
    usual = [benchmark.base, *(benchmark.base + benchmark.way * number for number in later)]
    if [size.classes for size in result.sessions] != usual:
        return None  # a recipe may depend on the classes of the sessions
    try:
        return recipes.recipe(result.recipe, benchmark, result.method, settings_of(result))
    except FewmoreError:  # a recipe or a setting that is no more
        return None
