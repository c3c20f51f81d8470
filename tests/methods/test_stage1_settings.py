"""Test that every method takes all settings of stage 1, which the methods share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods import METHODS, find
from fewmore.methods.base import Recipe
from fewmore.methods.network import Network
from fewmore.research import recipes
from fewmore.training.checkpoint import Checkpoint, read_state
from fewmore.training.runtime import Round, Runtime

SETTINGS = {
    "rotations": "4",
    "views": "2",
    "mix": "cutmix",
    "mix_alpha": "0.5",
    "label_smoothing": "0.1",
    "head_lr": "0.02",
}


@pytest.fixture
def changed(tiny_recipe: Recipe) -> Recipe:
    """Return a recipe for tiny_task with rotations, views and CutMix."""
    pretrain = replace(tiny_recipe.pretrain, epochs=4, rotations=4, views=2, mix="cutmix")
    return replace(tiny_recipe, pretrain=pretrain)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_all_sessions_after_such_a_stage_1(
    name: str,
    tiny_task: Task,
    sessions: list[ImageSet],
    small_recipe: Callable[..., Recipe],
) -> None:
    settings = [f"pretrain.{key}={value}" for key, value in SETTINGS.items()]
    recipe = small_recipe("quick", tiny_task.benchmark, name, *settings)
    assert (recipe.pretrain.rotations, recipe.pretrain.mix) == (4, "cutmix")
    method = find(name).build(recipe, Runtime(), 0)
    classes = 0
    for number, session in enumerate(sessions):
        method.learn(session) if number else method.fit(session)
        classes += len(session.class_names)
        scores = method.scores(tiny_task.test)
        assert scores.shape == (len(tiny_task.test), classes)
        assert bool(scores.isfinite().all())
    again = find(name).build(recipe, Runtime(), 0)
    again.restore(method.state())
    assert torch.equal(again.scores(tiny_task.test), scores)


def test_only_the_prototypes_of_unrotated_classes_stay(
    changed: Recipe, sessions: list[ImageSet], tmp_path: Path
) -> None:
    """Find them among those that the checkpoint holds: of rotations 0 to 3 of each class."""
    checkpoint = Checkpoint(tmp_path / "checkpoint", 0)
    network = Network(changed, Runtime(checkpoint=checkpoint))
    network.fit(sessions[0], "linear", 0)
    trained = read_state(checkpoint.path)["pretrain"]["tensors"]["classifier.prototypes"]
    assert len(trained) == 16
    assert torch.equal(network.classifier.prototypes, trained[[0, 4, 8, 12]])
    assert network.classifier.similarity == "linear"


class Stopped(Exception):
    pass


@pytest.mark.parametrize("done", [1, 3, 4])
def test_a_stopped_stage_1_resumes_exactly(
    changed: Recipe, sessions: list[ImageSet], tmp_path: Path, done: int
) -> None:
    def stop(report: Round) -> None:
        if report.round == done + 1:
            raise Stopped

    def fit(runtime: Runtime) -> Network:
        network = Network(changed, runtime)
        network.fit(sessions[0], "cosine", 0)
        return network

    whole = fit(Runtime()).state()
    path = tmp_path / "checkpoint"
    if done < 4:
        with pytest.raises(Stopped):
            fit(Runtime(checkpoint=Checkpoint(path, 0), on_round=stop))
    else:
        fit(Runtime(checkpoint=Checkpoint(path, 0)))
    reports: list[Round] = []
    resumed = fit(Runtime(checkpoint=Checkpoint(path, 0), on_round=reports.append)).state()
    assert [report.round for report in reports] == list(range(done + 1, 5))
    assert torch.equal(resumed["classifier"]["rows"], whole["classifier"]["rows"])
    for name, tensor in whole["backbone"].items():
        assert torch.equal(resumed["backbone"][name], tensor), name


@pytest.mark.parametrize("setting", ["head_lr", "scale", "label_smoothing", "mix", "mix_alpha"])
def test_the_cached_stage_1_of_other_settings_is_not_taken(
    changed: Recipe, sessions: list[ImageSet], tmp_path: Path, setting: str
) -> None:
    values = {
        "head_lr": 0.2,
        "scale": 20.0,
        "label_smoothing": 0.2,
        "mix": "mixup",
        "mix_alpha": 0.3,
    }
    base = replace(changed.pretrain, epochs=1, milestones=(), views=1, rotations=1)
    runtime = Runtime(stage1_cache=tmp_path)
    for pretrain in (base, base, replace(base, **{setting: values[setting]})):  # type: ignore[arg-type]
        Network(replace(changed, pretrain=pretrain), runtime).fit(sessions[0], "cosine", 0)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.parametrize(("setting", "value"), [("views", 2), ("rotations", 2)])
def test_a_cached_stage_1_with_views_or_rotations_is_as_trained(
    changed: Recipe, sessions: list[ImageSet], tmp_path: Path, setting: str, value: int
) -> None:
    base = replace(changed.pretrain, epochs=1, milestones=(), views=1, rotations=1)
    runtime = Runtime(stage1_cache=tmp_path)
    found = []
    for pretrain in (base, replace(base, **{setting: value}), replace(base, **{setting: value})):
        network = Network(replace(changed, pretrain=pretrain), runtime)
        network.fit(sessions[0], "cosine", 0)
        found.append(network.classifier.prototypes.detach())
    plain, trained, taken = found
    assert plain.shape == trained.shape == (4, 64)
    assert not torch.equal(plain, trained)
    assert torch.equal(trained, taken)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_a_scale_is_refused_where_the_head_is_linear_before_anything_is_trained(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe]
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "icarl", "icarl.pretrain.scale=32")
    reports: list[Round] = []
    method = find("icarl").build(recipe, Runtime(on_round=reports.append), 0)
    with pytest.raises(ConfigError, match="scale is for a cosine head, and this one is linear"):
        method.fit(sessions[0])
    assert reports == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mix=blend", "'blend' is not none or mixup or cutmix"),
        ("mix_alpha=0.2", "it has no effect with mix=none"),
        ("rotations=3", "rotations must be 1, 2 or 4, not 3"),
        ("views=1.5", "'1.5' is not a whole number"),
        ("head_lr=fast", "'fast' is not a number or none"),
    ],
)
def test_settings_from_the_command_line_are_checked(
    tiny_task: Task, setting: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        recipes.recipe("quick", tiny_task.benchmark, "cec", [f"pretrain.{setting}"])


def test_a_rate_of_the_head_can_be_taken_back(tiny_task: Task) -> None:
    texts = ["pretrain.head_lr=0.1", "pretrain.lr=0.005", "pretrain.head_lr=none"]
    recipe = recipes.recipe("quick", tiny_task.benchmark, "cec", texts[:2])
    assert (recipe.pretrain.lr, recipe.pretrain.head_lr) == (0.005, 0.1)
    assert recipes.recipe("quick", tiny_task.benchmark, "cec", texts).pretrain.head_lr is None
