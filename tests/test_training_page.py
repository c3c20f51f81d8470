"""Hold docs/training.md to the code: its snippet runs, and its settings exist and are off."""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from fewmore.data import augment
from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.methods.base import Recipe
from fewmore.methods.network import Network
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training import contrast, mixing, momentum, views
from fewmore.training.pretrain import Objective, PretrainConfig
from fewmore.training.runtime import Runtime

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "training.md").read_text()


def section(title: str) -> str:
    """Return the text below a heading, up to the next one."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_snippet_of_a_loss_runs(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", section("In a method of your own"), re.DOTALL)
    images = tiny_images()
    backbone = build("resnet8")
    head = Classifier("cosine", random_prototypes(16, 64, torch.Generator().manual_seed(0)))
    names = {"images": images, "transform": tiny_transform, "backbone": backbone, "head": head}
    exec(code, names)
    loss_of = names["loss_of"]
    loss = loss_of(torch.arange(24), torch.Generator().manual_seed(0))  # type: ignore[operator]
    loss.backward()
    assert loss.shape == ()
    for parameter in (*backbone.parameters(), *head.parameters()):
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())


def test_the_snippet_of_a_feature_recipe_runs(
    tiny_task: Task, small_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    text = section("A loss of your own in stage 1")
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    features = f"features={tmp_path}/mine.py:Contrasted"
    recipe = small_recipe("quick", tiny_task.benchmark, "decoupled-cosine", features)
    assert recipe.transform.policy == "randaugment"
    losses = []
    runtime = Runtime(on_round=lambda report: losses.append(report.loss))
    base = tiny_task.split.sessions[0].select_from(tiny_task.train).compact()
    for weight in (0.0, 0.5):
        pretrain = replace(recipe.pretrain, contrast=weight)  # type: ignore[call-arg]
        Network(replace(recipe, pretrain=pretrain), runtime).fit(base, "cosine", 0)
    assert losses[2] > losses[0]


def test_what_can_be_overridden_and_shared_is_there() -> None:
    text = section("A loss of your own in stage 1")
    hooks, settings, parts = re.findall(r"\| --- \| --- \|\n((?:\|.*\n)+)", text)
    for rows, owner in ((hooks, Objective), (settings, PretrainConfig)):
        for name in re.findall(r"^\| `(\w+)", rows, re.MULTILINE):
            assert hasattr(owner, name), name
    for name in re.findall(r"^\| `(\w+)\(", parts, re.MULTILINE):
        assert callable(getattr(contrast, name, None) or getattr(momentum, name, None)), name


def test_the_functions_of_the_table_are_there() -> None:
    named = re.findall(r"`(\w+)\(", section("In a method of your own").partition("| --- |")[2])
    assert set(named) >= {"several_views", "rotation_copies", "unrotated", "mixup", "cutmix"}
    for name in set(named) - {"cross_entropy"}:
        assert any(callable(getattr(part, name, None)) for part in (mixing, views, augment)), name


def test_the_settings_of_the_table_are_all_that_there_are_and_off() -> None:
    text = section("Labels, mixed images, views and rotations")
    named = dict(re.findall(r"^\| `pretrain\.(\w+)(?:=([\w.]+))?`", text, re.MULTILINE))
    defaults = PretrainConfig()
    own = [field.name for field in fields(PretrainConfig)]
    assert set(named) == set(own[own.index("head_lr") :])
    for name, value in named.items():
        assert str(getattr(defaults, name)) not in (value, f"{value}.0")


@pytest.mark.parametrize("page", ["training.md", "performance.md"])
def test_the_switch_of_the_fast_path_is_documented(page: str) -> None:
    assert "--no-accel" in (ROOT / "docs" / page).read_text()
