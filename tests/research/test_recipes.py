"""Recipes, and what `--set` makes of them."""

import dataclasses

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import ConfigError, UnknownName
from fewmore.methods import METHODS
from fewmore.research.recipes import RECIPES, recipe

CIFAR = BENCHMARKS["cifar100"]


def changed(*settings: str, name: str = "official"):
    return recipe(name, CIFAR, "decoupled-cosine", settings)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_recipe_can_be_made(name, benchmark, method):
    made = recipe(name, BENCHMARKS[benchmark], method)
    assert made.name == name
    views = dataclasses.replace(
        made.transform, scale=BENCHMARKS[benchmark].transform.scale
    )  # `mild` has milder crops
    assert (made.backbone, views) == (
        BENCHMARKS[benchmark].backbone,
        BENCHMARKS[benchmark].transform,
    )
    assert made == recipe(name, BENCHMARKS[benchmark], method), (
        "the same wish gives the same recipe"
    )
    assert hash(made) == hash(recipe(name, BENCHMARKS[benchmark], method))


def test_recipes_are_frozen():
    made = changed()
    for config, field in (
        (made, "backbone"),
        (made.pretrain, "epochs"),
        (made.session, "lr"),
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
    learnt = {name: recipe("official", CIFAR, name).session for name in METHODS}
    assert [name for name, session in learnt.items() if not session.data_init] == [
        "finetune",
        "linear",
        "cosine",
        "icarl",
        "eeil",
        "topic",
    ]
    assert learnt["finetune"].lr < learnt["linear"].lr
    assert recipe("official", CIFAR, "mine").session.data_init, "a method of one's own"


def test_the_benchmark_chooses_where_no_name_is_given():
    assert recipe(None, CIFAR, "cosine").name == "official"
    assert recipe(None, BENCHMARKS["glyphs"], "cosine").name == "quick"
    assert (
        recipe("quick", CIFAR, "cosine").pretrain.epochs
        < recipe("official", CIFAR, "cosine").pretrain.epochs / 5
    )


def test_an_unknown_recipe_is_suggested():
    with pytest.raises(UnknownName, match="no recipe is named 'oficial': did you mean official"):
        recipe("oficial", CIFAR, "cosine")


# ---- --set


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
        ("session.data_init=false", "session.data_init", False),
        ("backbone=resnet18", "backbone", "resnet18"),
        ("backbone='resnet18'", "backbone", "resnet18"),
        ("weights=/some/file.pth", "weights", "/some/file.pth"),
        ("weights=none", "weights", None),
        ("transform.crop=resized", "transform.crop", "resized"),
        ("transform.resize=40", "transform.resize", 40),
        ("transform.resize=none", "transform.resize", None),
        ("transform.scale=0.5,1", "transform.scale", (0.5, 1.0)),
    ],
)
def test_a_setting_is_changed_and_nothing_else(setting, path, value):
    made = changed(setting)
    found, *rest = path.split(".")
    inner = getattr(made, found)
    for name in rest:
        inner = getattr(inner, name)
    assert inner == value
    assert type(inner) is type(value)
    back = made
    if rest:
        group = dataclasses.replace(
            getattr(made, found), **{rest[0]: getattr(getattr(changed(), found), rest[0])}
        )
        back = dataclasses.replace(made, **{found: group})
    else:
        back = dataclasses.replace(made, **{found: getattr(changed(), found)})
    assert back == changed()


def test_numbers_keep_the_kind_of_the_setting():
    made = changed("pretrain.lr=1", "pretrain.epochs=7.0", "transform.mean=0,0,1")
    assert type(made.pretrain.lr) is float
    assert type(made.pretrain.epochs) is int
    assert [type(value) for value in made.transform.mean] == [float] * 3


def test_settings_are_checked_together():
    """Each of these alone would be refused: the two groups of classes must be alike."""
    with pytest.raises(ConfigError, match="same ways"):
        changed("pseudo.base_way=5")
    assert changed("pseudo.base_way=5", "pseudo.new_way=5").pseudo.new_way == 5
    assert changed("transform.resize=20", "transform.size=16").transform.resize == 20


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
            r"no setting of PretrainConfig is named 'epoch': did you mean epochs\?",
        ),
        ("pretain.epochs=5", r"no setting of Recipe is named 'pretain': did you mean pretrain\?"),
        ("=5", r"no setting of Recipe is named '': there are: .*backbone, .*pretrain, "),
        ("name=mine", r"no setting of Recipe is named 'name'"),
        ("pretrain.name=mine", r"no setting of PretrainConfig is named 'name'"),
        ("pretrain.=5", r"no setting of PretrainConfig is named ''"),
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
        ("pretrain.lr=-1", r"lr must be a number of at least 0, not -1.0"),
        ("pretrain.epochs=0", r"epochs must be at least 1, not 0"),
        ("pretrain.momentum=1", r"momentum must lie in \[0, 1\)"),
        ("pretrain.nesterov=1", r"'1' is not true or false; it was True"),
        (
            "pretrain.milestones=soon",
            r"'soon' is not numbers with commas between them; it was \(60, 70\)",
        ),
        ("pretrain.milestones=1.5,2", r"is not numbers with commas"),
        ("transform.scale=0.5", r"'0.5' is not 2 numbers with commas between them"),
        ("transform.mean=1,2", r"'1,2' is not 3 numbers with commas between them"),
        ("transform.crop=round", r"'round' is not pad or resized; it was 'pad'"),
        ("transform.resize=big", r"'big' is not a whole number or none"),
        ("transform.resize=8", r"resize \(8\) must not be smaller than size \(32\)"),
        ("weights=3", r"'3' is not a text or none"),
    ],
)
def test_what_cannot_be_set_is_said(setting, complaint):
    with pytest.raises(ConfigError, match=complaint):
        changed(setting)
