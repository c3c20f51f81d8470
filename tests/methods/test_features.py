"""Test that any method learns its features by any feature recipe, also one of a user's file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fewmore.data.benchmarks import BENCHMARKS, Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, MethodError, UnknownName
from fewmore.methods import FEATURES, METHODS, find, find_features
from fewmore.methods.base import Recipe
from fewmore.methods.network import Network
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import cosine
from fewmore.research import recipes, runner
from fewmore.research.experiment import Experiment
from fewmore.research.reporting import tables
from fewmore.training.checkpoint import Checkpoint, read_state
from fewmore.training.embed import embed
from fewmore.training.runtime import Round, Runtime

CIFAR = BENCHMARKS["cifar100"]
OWN = '''
from dataclasses import dataclass, replace

import torch
from torch import nn

from fewmore.training.momentum import Queue
from fewmore.training.pretrain import Objective, PretrainConfig


class Objective(Objective):
    """Draw features to the mean of those in a queue, through a projection."""

    def __init__(self, *args):
        super().__init__(*args)
        generator = torch.Generator().manual_seed(self.seed)
        self.projection = nn.Linear(self.backbone.dim, 8)
        with torch.no_grad():
            self.projection.weight.normal_(generator=generator)
            self.projection.bias.zero_()
        self.queue = Queue(self.config.queue, 8, generator)
        self.modules = {"projection": self.projection, "queue": self.queue}

    def auxiliary(self, batch):
        projected = self.projection(batch.features)
        others, _ = self.queue.read()
        self.queue.add(projected.detach(), batch.labels)
        return self.config.weight * (projected - others.mean(0)).square().mean()

    def kept(self):
        return {"queue": self.queue.features}


@dataclass(frozen=True)
class Own(PretrainConfig):
    """A feature recipe of one's own."""

    objective_type = Objective
    per_recipe = {"quick": {"queue": 16}}
    weight: float = 0.1  # of the pull
    queue: int = 64  # features in the queue

    @classmethod
    def for_benchmark(cls, benchmark):
        return replace(super().for_benchmark(benchmark), weight=0.2, scale=20)

    @classmethod
    def transform_for(cls, benchmark):
        return replace(benchmark.transform, pad=2)


class Other:
    pass
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Return the name of a feature recipe in a file."""
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return f"{path}:Own"


@pytest.mark.parametrize("name", FEATURES)
def test_a_row_of_the_table_says_what_its_class_does(name: str) -> None:
    info = find_features(name)
    assert info is FEATURES[name]
    assert info.title
    assert info.paper
    assert info.load().for_benchmark(CIFAR).__class__ is info.load()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_names_features_of_the_table(name: str) -> None:
    assert METHODS[name].features in FEATURES


def test_unknown_features_are_suggested(own: str) -> None:
    with pytest.raises(UnknownName, match="no feature recipe is named 'cecc': did you mean cec"):
        find_features("cecc")
    with pytest.raises(UnknownName, match="Owm"):
        find_features(own.replace("Own", "Owm"))
    with pytest.raises(MethodError, match="not a feature recipe"):
        find_features(own.replace(":Own", ":Other"))
    with pytest.raises(MethodError, match=r"name the class of the feature recipe, .*:Own"):
        find_features(own.removesuffix(":Own"))


def test_a_feature_recipe_and_a_method_are_not_mistaken_for_each_other(own: str) -> None:
    sentence = f"is a feature recipe, not a method: .* fewmore settings .*--features {own}"
    with pytest.raises(MethodError, match=sentence):
        find(own)
    with pytest.raises(MethodError, match="is a method, not a feature recipe: name it by --method"):
        find_features("fewmore.methods.teen:TEEN")


def test_a_recipe_has_the_settings_of_its_features(own: str) -> None:
    settings = ["pretrain.weight=0.5", "pretrain.epochs=3"]
    made = recipes.recipe("official", CIFAR, "cec", settings, own)
    plain = recipes.recipe("official", CIFAR, "cec")
    assert (made.pretrain.weight, made.pretrain.queue, made.pretrain.scale) == (0.5, 64, 20)
    assert (made.pretrain.epochs, made.pretrain.milestones) == (3, (60, 70))
    assert made.transform == replace(plain.transform, pad=2)
    assert (made.method, made.backbone, made.features) == (plain.method, plain.backbone, own)
    quick = recipes.recipe("quick", CIFAR, "cec", features=own).pretrain
    assert (quick.queue, quick.weight, quick.epochs) == (16, 0.2, 7)


def test_other_features_are_recorded_among_the_settings(own: str) -> None:
    (cec, cec_texts), (other, other_texts) = recipes.recipes_for(
        "quick", CIFAR, ["cec", "cec"], ["pretrain.weight=1", "pseudo.lr=1"], [None, own]
    )
    assert cec_texts == {"pseudo.lr": "1"}
    assert other_texts == {"features": own, "pretrain.weight": "1", "pseudo.lr": "1"}
    assert cec.features == "cec"
    by_setting = recipes.recipe("quick", CIFAR, "cec", [f"features={own}", "pretrain.weight=1"])
    assert by_setting == replace(other, method=by_setting.method)
    with pytest.raises(ConfigError, match="keep one"):
        recipes.recipe("quick", CIFAR, "cec", ["features=cec"], own)


def test_the_config_of_a_run_names_its_features(own: str) -> None:
    recipe = recipes.recipe("quick", CIFAR, "cec", features=own)
    experiment = Experiment("cifar100", "cec", recipe, {"features": own})
    assert Experiment.from_json(experiment.to_json()) == experiment


def test_modules_of_an_objective_train_are_kept_and_resume(
    own: str, tiny_task: Task, small_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    base = tiny_task.split.sessions[0].select_from(tiny_task.train).compact()
    recipe = small_recipe("quick", tiny_task.benchmark, "decoupled-cosine", f"features={own}")
    checkpoint = Checkpoint(tmp_path / "checkpoint", 0)
    network = Network(recipe, Runtime(checkpoint=checkpoint))
    network.fit(base, "cosine", 0)
    tensors = read_state(checkpoint.path)["pretrain"]["tensors"]
    assert torch.equal(tensors["queue.features"], network.kept["queue"])
    assert int(tensors["queue.place"]) == 4 * 24 % 16  # two epochs of two batches of 24
    assert bool((tensors["queue.labels"] >= 0).all())
    bias = tensors["projection.bias"]  # starts at zero
    assert bool(bias.any())

    class Stop(Exception):
        pass

    stopped = Checkpoint(tmp_path / "stopped", 0)
    once = Network(recipe, Runtime(checkpoint=stopped))
    rounds = []

    def stop_second(report: object) -> None:
        rounds.append(report)
        if len(rounds) == 2:
            raise Stop

    with pytest.raises(Stop):
        Network(recipe, Runtime(checkpoint=stopped, on_round=stop_second)).fit(base, "cosine", 0)
    once.fit(base, "cosine", 0)
    assert torch.equal(once.kept["queue"], network.kept["queue"])
    again = Network(recipe, Runtime())
    again.restore(network.state())
    assert torch.equal(again.kept["queue"], network.kept["queue"])


def test_stage_1_is_cached_by_the_features_and_their_file(
    own: str, tiny_task: Task, small_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    base = tiny_task.split.sessions[0].select_from(tiny_task.train).compact()
    runtime = Runtime(stage1_cache=tmp_path / "cache")

    def fit(features: str) -> int:
        settings = [] if features == "cec" else [f"features={features}"]
        recipe = small_recipe("quick", tiny_task.benchmark, "decoupled-cosine", *settings)
        Network(recipe, runtime).fit(base, "cosine", 0)
        return len(list((tmp_path / "cache").glob("*.safetensors")))

    assert [fit("cec"), fit(own), fit(own), fit("cec")] == [1, 2, 2, 2]
    path = Path(own.rpartition(":")[0])
    path.write_text(OWN + "\n# changed\n")
    assert fit(own) == 3


def test_stage_1_is_shared_by_the_code_that_was_loaded(
    own: str, tiny_task: Task, small_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    base = tiny_task.split.sessions[0].select_from(tiny_task.train).compact()
    rounds: list[Round] = []
    runtime = Runtime(stage1_cache=tmp_path / "cache", on_round=rounds.append)

    def recipe() -> Recipe:
        return small_recipe("quick", tiny_task.benchmark, "decoupled-cosine", f"features={own}")

    def stages(own_recipe: Recipe) -> set[str]:
        rounds.clear()
        Network(own_recipe, runtime).fit(base, "cosine", 0)
        return {report.stage for report in rounds}

    path = Path(own.rpartition(":")[0])
    before = recipe()
    path.unlink()  # as while it is saved anew
    assert stages(before) == {"pretrain"}
    path.write_text(OWN.replace("others.mean(0)).square()", "others.mean(0)).abs()"))
    assert stages(before) == {"pretrain (shared)"}
    assert stages(recipe()) == {"pretrain"}
    path.write_text(OWN)
    assert stages(recipe()) == {"pretrain (shared)"}


# ---- test views with features of their own

SEPARATE = ("transform.test_views=plain,rot180", "transform.view_features=separate")


@pytest.mark.parametrize("name", ["decoupled-cosine", "decoupled-l2", "cec"])
def test_separate_views_are_scored_by_prototypes_of_that_view(
    name: str, tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe]
) -> None:
    settings = ("pretrain.rotations=2", *SEPARATE)
    recipe = small_recipe("quick", tiny_task.benchmark, name, *settings)
    method = find(name).build(recipe, Runtime(), 0)
    method.fit(sessions[0])
    method.learn(sessions[1])
    scores = method.scores(tiny_task.test)
    features = method.embed(tiny_task.test)
    assert features.shape[1] == 128
    one_view = method.also_scores_of(features)["one_view"]
    by_view = []
    for view in ("plain", "rot180"):
        transform = replace(recipe.transform, test_views=(view,))
        alone = find(name).build(replace(recipe, transform=transform), Runtime(), 0)
        alone.fit(sessions[0])
        alone.learn(sessions[1])
        by_view.append(alone.scores(tiny_task.test))
        assert alone.also_scores_of(alone.embed(tiny_task.test)).keys() <= {"cosine_after_pil"}
    assert torch.allclose(one_view, by_view[0], atol=1e-4)
    assert torch.allclose(scores, torch.stack(by_view).mean(0), atol=1e-4)
    again = find(name).build(recipe, Runtime(), 0)
    again.restore(method.state())
    assert torch.equal(again.scores(tiny_task.test), scores)


def test_the_mean_of_cosines_to_rotated_shots(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe]
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "decoupled-cosine", *SEPARATE)
    method = find("decoupled-cosine").build(recipe, Runtime(), 0)
    method.fit(sessions[0])
    expected = []
    for view in ("plain", "rot180"):
        transform = replace(recipe.transform, test_views=(view,), view_features="mean")
        features = embed(method.network.backbone, sessions[0], transform)
        means = class_means(features, sessions[0].labels, len(sessions[0].class_names))
        test = embed(method.network.backbone, tiny_task.test, transform)
        expected.append(cosine(test, means))
    scores = method.scores(tiny_task.test)
    assert torch.allclose(scores, (expected[0] + expected[1]) / 2, atol=1e-5)


def test_the_accuracy_of_one_view_is_in_the_table(
    tiny_task: Task, small_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "decoupled-cosine", *SEPARATE)
    plan = runner.Plan(Experiment("tiny", "decoupled-cosine", recipe), tmp_path)
    [result] = runner.run_plans([plan], tiny_task, runner.RunOptions())
    assert result.test_views == (2.0,)
    [alone] = result.one_view
    assert alone == result.extra["one_view"][0][-1]
    [row] = tables.build([result]).rows
    assert row.detail == f"1 run, 2 test views, with one {alone:.2f}"


def test_methods_that_train_on_refuse_separate_views(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe]
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "icarl", *SEPARATE)
    with pytest.raises(ConfigError, match="view_features=mean"):
        find("icarl").build(recipe, Runtime(), 0)
    trained = (*SEPARATE, "session.data_init=false")
    recipe = small_recipe("quick", tiny_task.benchmark, "decoupled-cosine", *trained)
    with pytest.raises(ConfigError, match="class means"):
        find("decoupled-cosine").build(recipe, Runtime(), 0).fit(sessions[0])
