"""Test the recipes of all benchmarks and methods."""

import dataclasses
from operator import attrgetter

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import UnknownName
from fewmore.methods import FEATURES, METHODS, find_features
from fewmore.nn.similarity import TEMPERATURE
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
    own = find_features(METHODS[method].features).load().transform_for(entry)
    assert dataclasses.replace(made.transform, scale=own.scale) == own
    if METHODS[method].features == "cec":
        assert own == entry.transform
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


# The numbers of recipe `official`, typed from the paper, from the authors' program and from what
# was chosen on the validation split; docs/method.md says which is which. A change of one of them
# changes every result.

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
WHOLE_CROPS = {"crop": "resized", "scale": (0.08, 1.0), "flip": True}
BENCHMARK_NUMBERS = {
    "cifar100": {
        "backbone": "resnet20",
        "weights": None,
        "milestones": (60, 70),
        "last_batch": "drop",
        "encoder_lr": 0.002,
        "queries": 15,
        "transform": {
            "size": 32,
            "mean": (0.507, 0.487, 0.441),
            "std": (0.267, 0.256, 0.276),
            "crop": "pad",
            "pad": 4,
            "flip": True,
            "resize": None,
        },
    },
    "miniimagenet": {
        "backbone": "resnet18",
        "weights": None,
        "milestones": (40, 70),
        "last_batch": "drop",
        "encoder_lr": 0.0002,
        "queries": 15,
        "transform": {"size": 84, "resize": 92, **IMAGENET, **WHOLE_CROPS},
    },
    "cub200": {
        "backbone": "resnet18",
        "weights": "imagenet",
        "milestones": (30, 40, 60, 80),
        "last_batch": "fill",
        "encoder_lr": 0.0002,
        "queries": 10,
        "transform": {"size": 224, "resize": 256, **IMAGENET, **WHOLE_CROPS},
    },
}
SGD_NUMBERS = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
STAGE_1 = {"lr": 0.1, "decay": 0.1, "epochs": 100, "batch": 128, "ghost": 0, "augment": True}
STAGE_2 = {
    "lr": 0.0002,
    "milestones": (20, 40, 60, 80),  # rounds of 50 episodes: every 1,000 episodes
    "decay": 0.5,
    "episodes": 5000,
    "base_way": 15,
    "base_shot": 1,
    "new_way": 15,
    "new_shot": 1,
    "angles": (90, 180, 270),
    "same_classes": True,
    "encoder": "all",
    "augmented_rounds": 1,
}
ADAPTER = {
    "heads": 1,
    "attention_dropout": 0.0,
    "output_dropout": 0.0,
    "query_node": True,
    "scaling": True,
    "output_map": True,
    "layer_norm": True,
}
REPLAY = {"exemplars.per_class": 20}
DISTILLED = {**REPLAY, "distillation.temperature": 2.0}
IMAGENET_SCHEDULES = {  # of methods whose papers have a second one for ImageNet
    "icarl": {"session.epochs": 60, "session.milestones": (20, 30, 40, 50)},
    "lucir": {"session.epochs": 90, "session.milestones": (30, 60)},
}
DECOUPLED = {"session.lr": 0.1, "session.epochs": 100, "session.data_init": True}
METHOD_NUMBERS = {
    "finetune": {"similarity": "linear", "session.lr": 0.01, "session.epochs": 100},
    "linear": {"similarity": "linear", "session.lr": 0.1, "session.epochs": 100},
    "cosine": {"similarity": "cosine", "session.lr": 0.1, "session.epochs": 100},
    "icarl": {
        "session.lr": 0.00003,
        "session.epochs": 70,
        "session.milestones": (49, 63),
        "session.decay": 0.2,
        "session.frozen_norm": True,
        "distillation.weight": 5.0,
        **DISTILLED,
    },
    "eeil": {
        "session.lr": 0.1,
        "session.epochs": 40,
        "session.milestones": (10, 20, 30),
        "session.decay": 0.1,
        "session.frozen_norm": False,
        "balanced.lr": 0.01,
        "balanced.epochs": 30,
        "balanced.milestones": (10, 20),
        "balanced.decay": 0.1,
        "balanced.batch": 128,
        "distillation.weight": 0.2,
        **DISTILLED,
    },
    "lucir": {
        "less_forget": 25.0,
        "ranking": 1.0,
        "margin": 0.5,
        "negatives": 2,
        "session.lr": 0.003,
        "session.epochs": 160,
        "session.milestones": (80, 120),
        "session.decay": 0.1,
        "session.data_init": True,
        "session.frozen_norm": False,
        **REPLAY,
    },
    "topic": {
        "nodes": 400,
        "rounds": 20,
        "anchor": 12.5,
        "min_max": 0.005,
        "rehearse": True,
        "session.lr": 0.0003,
        "session.epochs": 100,
        "session.milestones": (),
    },
    "decoupled-linear": {"similarity": "linear", **DECOUPLED},
    "decoupled-cosine": {"similarity": "cosine", **DECOUPLED},
    "decoupled-l2": {"similarity": "l2", **DECOUPLED},
    "decoupled-deepemd": {},
    "cec": {"pseudo.angles": (90, 180, 270)},
    "cec-meta": {"pseudo.angles": ()},
    "lda": {"shrinkage": 0.3},
    "teen": {"temperature": 16},
    "closer": {"similarity": "cosine", **DECOUPLED},
    "fact": {"virtual_share": 0.1, "nearest": 40},
    "s3c": {
        "session.epochs": 100,
        "session.milestones": (),
        "session.nesterov": False,
        "session.weight_decay": 0,
    },
    "savc": {"similarity": "cosine", **DECOUPLED},
    "motic": {"similarity": "cosine", **DECOUPLED},
    "evolve": {},  # EVOLVE_CLASSIFIER has them
    "joint": {"similarity": "cosine"},
}
TEEN_ALPHA = {"cifar100": 0.1, "miniimagenet": 0.5, "cub200": 0.5}
EVOLVE_CLASSIFIER = {  # power, shrinkage and correction
    "cifar100": (0.75, 0.2, 0.6),
    "miniimagenet": (0.75, 0.2, 0.75),
    "cub200": (0.75, 0.4, 0.75),
}

# Of feature recipes, by benchmark: settings of stage 1, and of the transform where they differ from
# the benchmark's; typed from the authors' programs.
CLOSER = {
    **SGD_NUMBERS,
    "lr": 0.1,
    "head_lr": None,
    "schedule": "milestones",
    "decay": 0.1,
    "warm_up": 0,
    "epochs": 200,
    "milestones": (160, 180),
    "batch": 128,
    "scale": 32,
    "views": 3,
    "rotations": 1,
    "contrast": 0.1,
    "contrast_scale": 32,
    "closeness": 1,
}
TEEN = {
    **SGD_NUMBERS,
    "lr": 0.1,
    "head_lr": None,
    "schedule": "cosine",
    "warm_up": 0,
    "epochs": 600,
    "batch": 256,
    "scale": 16,
    "views": 1,
    "rotations": 1,
}
SAVC = {
    **SGD_NUMBERS,
    "lr": 0.1,
    "head_lr": None,
    "schedule": "cosine",
    "decay": 0.1,
    "warm_up": 0,
    "epochs": 600,
    "batch": 128,
    "scale": 16,
    "views": 1,
    "rotations": 2,
    "colors": 1,
    "labels_per_class": 2,
    "queue": 8192,
    "projection": 32,
    "encoder_momentum": 0.995,
    "temperature": 0.07,
    "contrast": 0.2,
    "local_contrast": 0.8,
    "global_scale": (0.9, 1.0),
    "local_scale": (0.2, 0.7),
    "local_size": 18,
    "local_crops": 4,
    "local_labels": "program",
}
SAVC_LARGE = {
    **SAVC,
    "schedule": "milestones",
    "epochs": 120,
    "projection": 128,
    "encoder_momentum": 0.999,
    "global_scale": (0.2, 1.0),
    "local_scale": (0.05, 0.14),
}
MOTIC = {
    **SGD_NUMBERS,
    "lr": 0.1,
    "head_lr": None,
    "schedule": "cosine",
    "warm_up": 10,
    "epochs": 200,
    "batch": 128,
    "scale": 32,
    "views": 3,
    "rotations": 2,
    "queue": 65536,
    "encoder_momentum": 0.999,
    "contrast": 0.1,
    "temperature": 0.01,
    "closeness": 2.5,
    "closeness_from": 1,
    "own_passes": True,
}
HALF_TURN = {"test_views": ("plain", "rot180"), "view_features": "separate"}
TURNS = ("plain", "rot90", "rot180", "rot270")
FACT = {
    **TEEN,
    "ghost": 64,
    "virtual": 40,
    "reserve": 0.001,
    "reserve_from": 0,
    "inner_alpha": 0.5,
}
S3C = {
    **SGD_NUMBERS,
    "lr": 0.1,
    "head_lr": None,
    "schedule": "milestones",
    "decay": 0.1,
    "warm_up": 0,
    "epochs": 200,
    "milestones": (120, 160),
    "batch": 128,
    "scale": 16,
    "views": 1,
    "rotations": 4,
    "residual": True,
    "dropout": 0.5,
}
FOUR_VIEWS = {
    "test_views": ("plain", "rot90", "rot180", "rot270"),
    "view_features": "separate",
}
EVOLVE = {
    **CLOSER,
    "epochs": 160,
    "lr": 0.2,
    "schedule": "cosine",
    "milestones": (),
    "warm_up": 5,
    "views": 2,
    "rotations": 2,
}
LARGE = {
    "test_views": ("large", "flip-large", "rot180-large", "rot180-flip-large"),
    "view_features": "separate",
}
BOTH_SIZES = {
    "test_views": ("plain", "flip", "rot180", "rot180-flip", *LARGE["test_views"]),
    "large": 1.5,
    "view_features": "separate",
}
BLACK_CUTOUT = {"policy": "autoaugment-cifar10", "cutout": 16, "cutout_color": "black"}
FEATURE_NUMBERS = {
    **{("pretrained", name): ({"epochs": 0}, {}) for name in BENCHMARK_NUMBERS},
    ("teen", "cifar100"): (TEEN, BLACK_CUTOUT),
    ("teen", "miniimagenet"): (
        {**TEEN, "epochs": 1000, "batch": 128, "scale": 32},
        {"policy": "autoaugment-imagenet"},
    ),
    ("teen", "cub200"): (
        {
            **TEEN,
            "epochs": 400,
            "batch": 128,
            "lr": 0.004,
            "schedule": "milestones",
            "milestones": (50, 100, 150, 200, 250, 300),
            "decay": 0.25,
            "scale": 32,
            "last_batch": "fill",
        },
        {},
    ),
    ("fact", "cifar100"): (FACT, BLACK_CUTOUT),
    ("fact", "miniimagenet"): (
        {**FACT, "epochs": 1000, "batch": 128, "ghost": 32, "reserve": 0.01, "reserve_from": 150},
        {"policy": "autoaugment-imagenet"},
    ),
    ("fact", "cub200"): (
        {
            **FACT,
            "epochs": 400,
            "lr": 0.005,
            "schedule": "milestones",
            "milestones": (50, 100, 150, 200, 250, 300),
            "decay": 0.25,
            "virtual": 100,
            "reserve": 0.01,
            "inner_alpha": 2,
            "last_batch": "fill",
        },
        {"policy": "autoaugment-imagenet"},
    ),
    ("s3c", "cifar100"): (S3C, FOUR_VIEWS),
    ("s3c", "miniimagenet"): ({**S3C, "epochs": 100, "milestones": (40, 70)}, FOUR_VIEWS),
    ("s3c", "cub200"): (
        {
            **S3C,
            "epochs": 100,
            "milestones": (30, 40, 60, 80),
            "lr": 0.03,
            "last_batch": "fill",
        },
        FOUR_VIEWS,
    ),
    ("closer", "cifar100"): (
        CLOSER,
        {
            "crop": "mixed",
            "scale": (0.25, 1.0),
            "ratio": (1.0, 1.0),
            "policy": "autoaugment-cifar10",
            "policy_probability": 0.5,
            "policy_resampling": "bilinear",
        },
    ),
    ("closer", "miniimagenet"): (
        {**CLOSER, "closeness": 0.5},
        {
            "resize": 96,
            "policy": "autoaugment-imagenet",
            "policy_probability": 0.5,
            "policy_resampling": "bilinear",
        },
    ),
    ("closer", "cub200"): (
        {
            **CLOSER,
            "epochs": 50,
            "milestones": (40, 45),
            "batch": 256,
            "lr": 0.005,
            "head_lr": 0.1,
            "contrast": 0.01,
            "closeness": 1.5,
            "last_batch": "fill",
        },
        {"scale": (0.25, 1.0), "ratio": (1.0, 1.0), "stored": 448},
    ),
    ("savc", "cifar100"): (SAVC, HALF_TURN),
    ("savc", "miniimagenet"): (
        {
            **SAVC_LARGE,
            "milestones": (40, 70, 100),
            "rotations": 4,
            "colors": 3,
            "labels_per_class": 12,
            "local_size": 50,
        },
        {
            "test_views": (
                *("plain", "gbr", "brg"),
                *(turn + order for turn in TURNS[1:] for order in ("", "-gbr", "-brg")),
            ),
            "view_features": "separate",
        },
    ),
    ("savc", "cub200"): (
        {
            **SAVC_LARGE,
            "lr": 0.002,
            "milestones": (60, 80, 100),
            "local_size": 96,
            "last_batch": "fill",
        },
        {**HALF_TURN, "stored": 448},
    ),
    ("motic", "cifar100"): (
        MOTIC,
        {
            **HALF_TURN,
            "crop": "mixed",
            "scale": (0.25, 1.0),
            "ratio": (1.0, 1.0),
            "policy": "autoaugment-cifar10",
            "policy_probability": 0.5,
            "policy_resampling": "bilinear",
        },
    ),
    ("motic", "miniimagenet"): (
        {**MOTIC, "rotations": 4, "queue": 8192, "temperature": 0.03, "closeness": 1.5},
        {
            "test_views": TURNS,
            "view_features": "separate",
            "resize": 96,
            "policy": "autoaugment-imagenet",
            "policy_probability": 0.5,
            "policy_resampling": "bilinear",
        },
    ),
    ("motic", "cub200"): (
        {
            **MOTIC,
            "epochs": 70,
            "warm_up": 3,
            "batch": 64,
            "lr": 0.005,
            "head_lr": 0.1,
            "queue": 8192,
            "temperature": 0.07,
            "contrast": 0.01,
        },
        {**HALF_TURN, "scale": (0.25, 1.0), "ratio": (1.0, 1.0), "stored": 448},
    ),
    ("evolve", "cifar100"): (
        EVOLVE,
        {
            **BOTH_SIZES,
            "crop": "mixed",
            "scale": (0.25, 1.0),
            "ratio": (1.0, 1.0),
            "policy": "autoaugment-cifar10",
            "policy_probability": 0.5,
        },
    ),
    ("evolve", "miniimagenet"): (
        {**EVOLVE, "epochs": 80},
        {
            **LARGE,
            "scale": (0.25, 1.0),
            "policy": "autoaugment-imagenet",
            "policy_probability": 0.5,
        },
    ),
    ("evolve", "cub200"): (
        {
            **EVOLVE,
            "epochs": 50,
            "lr": 0.01,
            "head_lr": 0.1,
            "contrast": 0.01,
            "closeness": 3.0,
            "ema": 0.99,
        },
        {**LARGE, "scale": (0.25, 1.0), "ratio": (1.0, 1.0), "stored": 448},
    ),
}


def read(config, names):
    """Return the settings of these names; a name with a dot is of a nested config."""
    return {name: attrgetter(name)(config) for name in names}


@pytest.mark.parametrize("benchmark", BENCHMARK_NUMBERS)
def test_the_official_numbers_of_each_benchmark(benchmark):
    expected = BENCHMARK_NUMBERS[benchmark]
    made = recipe("official", BENCHMARKS[benchmark], "cec")
    assert read(made, ("backbone", "weights")) == {
        "backbone": expected["backbone"],
        "weights": expected["weights"],
    }
    assert read(made.transform, expected["transform"]) == expected["transform"]
    own = {name: expected[name] for name in ("milestones", "last_batch")}
    stage1 = {**SGD_NUMBERS, **STAGE_1, **own}
    assert read(made.pretrain, stage1) == stage1
    queries = {"base_query": expected["queries"], "new_query": expected["queries"]}
    stage2 = {**SGD_NUMBERS, **STAGE_2, **queries, "encoder_lr": expected["encoder_lr"]}
    assert read(made.method.pseudo, stage2) == stage2
    assert read(made.method.adapter, ADAPTER) == ADAPTER
    assert TEMPERATURE == 16


@pytest.mark.parametrize("benchmark", BENCHMARK_NUMBERS)
def test_the_paper_recipe_differs_in_stage_2_alone(benchmark):
    made = recipe("paper", BENCHMARKS[benchmark], "cec")
    official = recipe("official", BENCHMARKS[benchmark], "cec")
    text = {"base_query": 10, "new_query": 10, "same_classes": False, "encoder": "last"}
    pseudo = dataclasses.replace(official.method.pseudo, augmented_rounds=100, **text)
    method = dataclasses.replace(official.method, pseudo=pseudo)
    assert made == dataclasses.replace(official, name="paper", method=method)


@pytest.mark.parametrize("benchmark", BENCHMARK_NUMBERS)
@pytest.mark.parametrize("method", METHOD_NUMBERS)
def test_the_official_numbers_of_each_method(method, benchmark):
    config = recipe("official", BENCHMARKS[benchmark], method).method
    expected = METHOD_NUMBERS[method]
    if benchmark != "cifar100":
        expected = {**expected, **IMAGENET_SCHEDULES.get(method, {})}
    assert read(config, expected) == expected
    if hasattr(config, "session"):
        own = {name.removeprefix("session.") for name in expected}
        session = {**SGD_NUMBERS, "batch": 128}
        session = {name: value for name, value in session.items() if name not in own}
        assert read(config.session, session) == session


def test_every_method_has_its_numbers_here():
    assert list(METHOD_NUMBERS) == list(METHODS)
    expected = {(name, place) for name in FEATURES for place in BENCHMARK_NUMBERS if name != "cec"}
    assert set(FEATURE_NUMBERS) == expected


@pytest.mark.parametrize(("features", "benchmark"), FEATURE_NUMBERS)
def test_the_official_numbers_of_each_feature_recipe(features, benchmark):
    entry = BENCHMARKS[benchmark]
    made = recipe("official", entry, "decoupled-cosine", features=features)
    pretrain, transform = FEATURE_NUMBERS[features, benchmark]
    assert read(made.pretrain, pretrain) == pretrain
    assert made.transform == dataclasses.replace(entry.transform, **transform)
    assert made.backbone == entry.backbone


@pytest.mark.parametrize("benchmark", TEEN_ALPHA)
def test_the_official_calibration_of_teen(benchmark):
    made = recipe("official", BENCHMARKS[benchmark], "teen")
    assert made.method.alpha == TEEN_ALPHA[benchmark]


@pytest.mark.parametrize("benchmark", EVOLVE_CLASSIFIER)
def test_the_classifier_of_evolve_depends_on_the_benchmark(benchmark):
    made = recipe("official", BENCHMARKS[benchmark], "evolve").method
    assert (made.power, made.shrinkage, made.correction) == EVOLVE_CLASSIFIER[benchmark]


def test_a_method_has_its_own_features():
    closer = recipe("official", CIFAR, "closer")
    assert closer == recipe("official", CIFAR, "decoupled-cosine", features="closer")
    assert recipe("official", CIFAR, "teen").features == "teen"
    assert recipe("official", CIFAR, "teen", features="cec").pretrain == (
        recipe("official", CIFAR, "cec").pretrain
    )


def test_sessions_by_method():
    configs = {name: recipe("official", CIFAR, name).method for name in METHODS}
    learnt = {
        name: config.session for name, config in configs.items() if hasattr(config, "session")
    }
    # S3C starts from class means always.
    assert [
        name for name, session in learnt.items() if not getattr(session, "data_init", True)
    ] == [
        "finetune",
        "linear",
        "cosine",
        "icarl",
        "eeil",
        "topic",
    ]


def test_the_official_stage_1_of_glyphs():
    made = recipe("official", BENCHMARKS["glyphs"], "decoupled-cosine")
    expected = {**SGD_NUMBERS, **STAGE_1, "milestones": (60, 70)}
    assert read(made.pretrain, expected) == expected
    assert made.weights is None


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
