"""Test how `--set` changes recipes."""

from typing import Any

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import ConfigError, UnknownName
from fewmore.methods.base import Recipe
from fewmore.methods.recipe import override
from fewmore.research.recipes import recipe, recipes_for

CIFAR = BENCHMARKS["cifar100"]


def changed(*settings: str) -> Recipe:
    return recipe("official", CIFAR, "decoupled-cosine", settings)


def get(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("pretrain.epochs=50", "pretrain.epochs", 50),
        ("pretrain.epochs=5e1", "pretrain.epochs", 50),
        ("pretrain.lr=1", "pretrain.lr", 1.0),
        ("pretrain.lr=2e-3", "pretrain.lr", 0.002),
        ("pretrain.nesterov=false", "pretrain.nesterov", False),
        ("pretrain.augment=False", "pretrain.augment", False),
        ("pretrain.milestones=10,20", "pretrain.milestones", (10, 20)),
        ("pretrain.milestones=(10, 20)", "pretrain.milestones", (10, 20)),
        ("pretrain.milestones=[10]", "pretrain.milestones", (10,)),
        ("pretrain.milestones=10", "pretrain.milestones", (10,)),
        ("pretrain.milestones=()", "pretrain.milestones", ()),
        ("pretrain.milestones=", "pretrain.milestones", ()),
        ("session.data_init=false", "method.session.data_init", False),
        ("similarity=linear", "method.similarity", "linear"),
        ("backbone=resnet18", "backbone", "resnet18"),
        ("backbone='resnet18'", "backbone", "resnet18"),
        ("weights=/some/file.pth", "weights", "/some/file.pth"),
        ("weights=none", "weights", None),
        ("transform.crop=resized", "transform.crop", "resized"),
        ("transform.resize=40", "transform.resize", 40),
        ("transform.resize=none", "transform.resize", None),
        ("transform.scale=0.5,1", "transform.scale", (0.5, 1.0)),
        ("transform.crop=mixed", "transform.crop", "mixed"),
        ("transform.policy=randaugment", "transform.policy", "randaugment"),
        ("transform.jitter=0.4,0.4,0.4,0.1", "transform.jitter", (0.4, 0.4, 0.4, 0.1)),
        ("transform.test_views=plain,flip", "transform.test_views", ("plain", "flip")),
        ("transform.test_views=rot90", "transform.test_views", ("rot90",)),
    ],
)
def test_a_setting_is_changed_and_nothing_else(setting, path, value):
    made = changed(setting)
    assert get(made, path) == value
    assert type(get(made, path)) is type(value)
    back: Any = get(changed(), path)
    for name in reversed(path.split(".")):
        back = {name: back}
    assert override(made, back) == changed()


def test_numbers_keep_the_kind_of_the_setting():
    made = changed("pretrain.lr=1", "pretrain.epochs=7.0", "transform.mean=0,0,1")
    assert type(made.pretrain.lr) is float
    assert type(made.pretrain.epochs) is int
    assert [type(value) for value in made.transform.mean] == [float] * 3


def test_settings_are_checked_together():
    """Check settings that would be refused alone: both groups of classes must be equally large."""
    with pytest.raises(ConfigError, match="same ways"):
        recipe("official", CIFAR, "cec", ["pseudo.base_way=5"])
    made = recipe("official", CIFAR, "cec", ["pseudo.base_way=5", "pseudo.new_way=5"])
    assert made.method.pseudo.new_way == 5
    assert changed("transform.resize=20", "transform.size=16").transform.resize == 20


def test_none_is_a_word_where_the_setting_has_it():
    made = recipe("official", CIFAR, "cec", ["pseudo.encoder=none", "transform.policy=none"])
    assert made.method.pseudo.encoder == "none"
    assert made.transform.policy == "none"
    assert recipe("official", CIFAR, "cec", ["weights=none"]).weights is None


def test_a_text_may_look_like_a_number():
    made = recipe("official", CIFAR, "cec", ["weights=2024"])
    assert made.weights == "2024"


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ("rates: list[float] = field(default_factory=lambda: [0.1])", r"is \[0.1\], not list"),
        ("count: int = None", "is None, not a whole number"),
        ("cache: Path = Path('x')", r"is PosixPath\('x'\), not"),
        ("sizes: Sizes = Sizes()", "small of the settings of mine is None, not a number"),
    ],
)
def test_a_users_setting_of_another_type_is_refused(field, complaint, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(f"""
from dataclasses import dataclass, field
from pathlib import Path
from fewmore.methods.base import MethodConfig
from fewmore.methods.discriminant import Discriminant

@dataclass(frozen=True)
class Sizes:
    large: float = 1.0
    small: float = None

@dataclass(frozen=True)
class Config(MethodConfig):
    {field}

class Mine(Discriminant):
    name = "mine"
    config_type = Config
""")
    with pytest.raises(ConfigError, match=complaint):
        recipe("official", CIFAR, f"{path}:Mine")


def test_the_last_of_equal_settings_counts():
    assert changed("pretrain.epochs=5", "pretrain.epochs=6").pretrain.epochs == 6


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        (
            "pretrain.epochs",
            r"--set pretrain.epochs: write it as name=value, such as --set pretrain.epochs=50",
        ),
        (
            "pretrain.epoch=5",
            r"no setting of pretrain is named 'epoch': did you mean epochs\?",
        ),
        ("pretain.epochs=5", r"no setting is named 'pretain': did you mean pretrain\?"),
        ("=5", r"no setting is named '': there are: .*backbone, .*pretrain, "),
        ("name=mine", r"no setting is named 'name'"),
        ("method.similarity=l2", r"no setting is named 'method'"),
        ("pseudo.lr=1", r"no setting is named 'pseudo'"),
        ("session=5", r"--set session: that is a group of settings; name one of session.lr, "),
        ("similarity=round", r"'round' is not linear or cosine or l2; it was 'cosine'"),
        ("pretrain.name=mine", r"no setting of pretrain is named 'name'"),
        ("pretrain.=5", r"no setting of pretrain is named ''"),
        ("pretrain=5", r"--set pretrain: that is a group of settings; name one of pretrain.lr, "),
        (
            "backbone.depth=5",
            r"--set backbone.depth: 'backbone' is a single value, not a group of settings",
        ),
        ("pretrain.epochs.more=5", r"'epochs' is a single value"),
        (
            "pretrain.epochs=many",
            r"--set pretrain.epochs=many: 'many' is not a whole number; it was 100",
        ),
        ("pretrain.epochs=5.5", r"'5.5' is not a whole number"),
        ("pretrain.epochs=true", r"'true' is not a whole number"),
        ("pretrain.epochs=1e999", r"'1e999' is not a whole number"),
        ("pretrain.epochs=", r"'' is not a whole number"),
        ("pretrain.epochs=none", r"'none' is not a whole number"),
        ("pretrain.epochs={[]: 1}", r"is not a whole number"),
        ("pretrain.epochs=" + "-" * 3000 + "1", r"is not a whole number"),
        ("pretrain.lr=fast", r"'fast' is not a number; it was 0.1"),
        ("pretrain.lr=nan", r"'nan' is not a number"),
        ("pretrain.lr=1e999", r"lr must be a number of at least 0, not inf"),
        ("pretrain.lr=-1", r"--set pretrain.lr=-1: optimizer: lr must be .* at least 0, not -1.0"),
        ("pretrain.epochs=0", r"--set pretrain.epochs=0: epochs must be at least 1, not 0"),
        ("pretrain.momentum=1", r"momentum must lie in \[0, 1\)"),
        ("pretrain.nesterov=1", r"'1' is not true or false; it was True"),
        (
            "pretrain.milestones=soon",
            r"'soon' is not numbers with commas between them; it was \(60, 70\)",
        ),
        ("pretrain.milestones=1.5,2", r"is not numbers with commas"),
        ("transform.scale=0.5", r"'0.5' is not 2 numbers with commas between them"),
        ("transform.mean=1,2", r"'1,2' is not 3 numbers with commas between them"),
        ("transform.crop=round", r"'round' is not pad or resized or mixed; it was 'pad'"),
        (
            "transform.test_views=plain,up",
            r"'plain,up' is not plain, flip, rot90, .*, rot270-brg, with commas between them; it",
        ),
        (
            "transform.test_views=",
            r"test_views must be different ones of plain, flip, .*, not \(\)",
        ),
        ("transform.jitter=0.4", r"'0.4' is not 4 numbers with commas between them"),
        ("transform.cutout=-1", r"cutout must not be negative"),
        ("transform.policy=auto", r"is not none or autoaugment-cifar10 or .* or randaugment; it"),
        ("transform.policy_probability=0.5", r"it has no effect with policy=none; leave it out"),
        ("transform.randaugment_ops=3", r"it has no effect with policy=none; leave it out"),
        ("pretrain.optimizer=adam", r"'adam' is not sgd or adamw; it was 'sgd'"),
        ("pretrain.schedule=step", r"'step' is not milestones or cosine; it was 'milestones'"),
        ("pretrain.ema=1", r"ema must lie in \[0, 1\), not 1.0"),
        ("pretrain.warm_up=101", r"warm_up must be at most the number of rounds, 100, and is 101"),
        ("transform.resize=big", r"'big' is not a whole number or none"),
        ("transform.stored=64", r"it has no effect with crop=pad; leave it out"),
        ("transform.resize=8", r"resize \(8\) must not be smaller than size \(32\)"),
    ],
)
def test_wrong_settings_are_refused(setting, complaint):
    with pytest.raises(ConfigError, match=complaint):
        changed(setting)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            ["pretrain.optimizer=adamw", "pretrain.nesterov=true"],
            "--set pretrain.nesterov: it has no effect with optimizer=adamw; leave it out",
        ),
        (["session.milestones=3", "session.schedule=cosine"], "session.milestones: it has no eff"),
        (["pretrain.schedule=cosine", "pretrain.decay=0.5"], "it has no effect with schedule=cos"),
    ],
)
def test_settings_without_effect_are_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        changed(*settings)
    made = changed("pretrain.optimizer=adamw", "pretrain.schedule=cosine", "pretrain.lr=0.001")
    assert made.pretrain.nesterov, "what a recipe says beforehand is no mistake"


# ---- several methods


def test_a_method_goes_without_the_settings_of_another():
    settings = ["pretrain.epochs=5", "pseudo.lr=0.5", "session.lr=0.25"]
    (cec, for_cec), (cosine, for_cosine) = recipes_for(
        "official", CIFAR, ["cec", "cosine"], settings
    )
    assert for_cec == {"pretrain.epochs": "5", "pseudo.lr": "0.5"}
    assert for_cosine == {"pretrain.epochs": "5", "session.lr": "0.25"}
    assert (cec.pretrain.epochs, cec.method.pseudo.lr) == (5, 0.5)
    assert (cosine.pretrain.epochs, cosine.method.session.lr) == (5, 0.25)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("zzzz=1", "adapter, backbone, pretrain, pseudo, session, similarity, transform, weights"),
        ("session.zzzz=1", "no setting of session is named 'zzzz': there are: .*data_init"),
        ("pseudo.episode=1", "did you mean episodes"),
    ],
)
def test_a_setting_that_no_method_has_is_refused(setting, complaint):
    with pytest.raises(UnknownName, match=complaint):
        recipes_for("official", CIFAR, ["cec", "cosine"], [setting])


def test_a_setting_of_one_method_by_the_methods_name():
    methods = ["decoupled-cosine", "decoupled-linear"]
    settings = ["session.lr=0.5", "decoupled-linear.session.lr=0.25"]
    made = recipes_for("quick", BENCHMARKS["glyphs"], methods, settings)
    assert [recipe.method.session.lr for recipe, _ in made] == [0.5, 0.25]
    assert [texts for _, texts in made] == [{"session.lr": "0.5"}, {"session.lr": "0.25"}]
    with pytest.raises(UnknownName, match="did you mean session"):
        recipes_for("quick", BENCHMARKS["glyphs"], methods, ["decoupled-linear.sesion.lr=1"])
    with pytest.raises(ConfigError, match=r"cec is not a method of this command, which has dec"):
        recipes_for("quick", BENCHMARKS["glyphs"], methods, ["cec.pseudo.lr=1"])
    with pytest.raises(UnknownName, match=r"no setting or method is named 'cek': did you mean cec"):
        recipes_for("quick", BENCHMARKS["glyphs"], methods, ["cek.pseudo.lr=1"])


def test_a_complaint_names_the_method_whose_settings_are_wrong():
    both = ["cec", "evolve"]
    with pytest.raises(ConfigError, match=r"^evolve: --set pretrain.epochs=1: .*: lower it too"):
        recipes_for("official", CIFAR, both, ["pretrain.epochs=1"])
    settings = ["pretrain.epochs=1", "evolve.pretrain.warm_up=1"]
    made = recipes_for("official", CIFAR, both, settings)
    assert [recipe.pretrain.warm_up for recipe, _ in made] == [0, 1]
    with pytest.raises(ConfigError, match=r"^--set pretrain.epochs=1"):
        recipes_for("official", CIFAR, both[1:], ["pretrain.epochs=1"])


def test_of_several_settings_those_that_a_complaint_is_about_are_named():
    with pytest.raises(ConfigError, match=r"^--set pretrain.epochs=0: epochs must"):
        changed("pretrain.lr=0.5", "pretrain.epochs=0")
