"""Test on a CPU that no step of a method would make the host wait for a GPU.

Settings are those of the benchmarks, but for sizes and lengths.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.data.images import ImageSet
from fewmore.methods import METHODS, find
from fewmore.methods.recipe import Recipe
from fewmore.training.runtime import Round, Runtime


@pytest.mark.parametrize("benchmark", ["cifar100", "miniimagenet", "cub200"])
@pytest.mark.parametrize("name", METHODS)
def test_no_step_waits(
    name: str,
    benchmark: str,
    sessions: list[ImageSet],
    small_recipe: Callable[..., Recipe],
) -> None:
    small = replace(BENCHMARKS[benchmark], backbone="resnet8", pretrained=False)
    recipe = small_recipe("official", small, name, "pretrain.local_size=6")
    transform = recipe.transform
    transform = replace(
        transform,
        size=8,
        pad=min(transform.pad, 1),
        resize=transform.resize and 9,
        cutout=min(transform.cutout, 3),
        stored=None,
    )
    ghost = recipe.pretrain.ghost and 6
    recipe = replace(recipe, transform=transform, pretrain=replace(recipe.pretrain, ghost=ghost))
    rounds: list[Round] = []
    runtime = Runtime(forbid_sync=True, on_round=rounds.append)
    method = find(name).build(recipe, runtime, 0)
    method.fit(sessions[0])
    method.learn(sessions[1])
    assert rounds
