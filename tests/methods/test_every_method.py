"""Examine every registered method, and again with trained prototypes where it can do both."""

from collections import Counter
from pathlib import Path

import pytest

from fewmore.data.images import ImageSet
from fewmore.methods import METHODS, find
from fewmore.research.exam_checks import CHECKS, Failure, NotApplicable, parameters_are_trained
from fewmore.research.exam_world import Case, make_case

TRAINS_PROTOTYPES = (
    "finetune",
    "linear",
    "cosine",
    "decoupled-linear",
    "decoupled-cosine",
    "decoupled-l2",
)  # with data init off
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = (
    f"{ROOT}/docs/examples/power_means.py:PowerMeans",
    f"{ROOT}/examples/teen.py:TEEN",
    f"{ROOT}/examples/ridge.py:Ridge",
    f"{ROOT}/examples/protonet.py:ProtoNet",
    f"{ROOT}/examples/rotated_mixup.py:RotatedMixup",
    f"{ROOT}/examples/own_loop.py:OwnLoop",
)
CASES = [(name, True) for name in (*METHODS, *EXAMPLES)] + [
    (name, False) for name in TRAINS_PROTOTYPES
]
_cases: dict[tuple[str, bool], Case] = {}  # they hold results that many checks need


@pytest.fixture(
    params=CASES,
    ids=[find(name).name + ("" if data_init else "-trained") for name, data_init in CASES],
)
def case(request, monkeypatch) -> Case:
    monkeypatch.setattr("fewmore.training.pseudo_incremental.ROUND", 2)
    name, data_init = request.param
    if request.param not in _cases:
        ordered = find(name).ordered or not data_init  # trained prototypes depend on the order
        _cases[request.param] = make_case(name, [f"session.data_init={data_init}"], ordered)
    return _cases[request.param]


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_check(case, check):
    try:
        check.function(case)
    except NotApplicable as reason:
        pytest.skip(str(reason))


def contents(images: ImageSet) -> Counter[tuple[str, bytes]]:
    return Counter(
        (images.class_names[int(images.labels[i])], images.image(i).numpy().tobytes())
        for i in range(len(images))
    )


def test_a_method_that_keeps_every_image_keeps_exactly_those(case):
    if case.info.memory != "every image":
        pytest.skip(f"keeps {case.info.memory}")
    method = case.fitted(2)
    shown = contents(case.base) + contents(case.sessions[0]) + contents(case.sessions[1])
    assert method.images_kept() == shown.total()
    copy = case.build()
    copy.restore(method.state())
    assert contents(method.seen) == contents(copy.seen) == shown


# ---- the exam itself

PROJECTED = """
import torch
from torch import nn
from fewmore.methods.base import FrozenBackbone
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import cosine
from fewmore.random import derive_seed


class Projected(FrozenBackbone):
    def __init__(self, recipe, runtime, seed):
        super().__init__(recipe, runtime, seed)
        generator = torch.Generator().manual_seed(derive_seed(seed, "projection"))
        self.constant = torch.randn(64, 32, generator=generator)
        self.forgotten = nn.PReLU(2)  # starts at a constant

    def fit(self, base):
        self.network.fit(base, "cosine", self.seed)
        self.means = self._means(base)

    def learn(self, session):
        self.means = torch.cat([self.means, self._means(session)])

    def _means(self, images):
        return class_means(self.embed(images), images.labels, len(images.class_names))

    def embed(self, images):
        return self.network.embed(images) @ self.constant

    def scores_of(self, features):
        return cosine(features, self.means)

    def state(self):
        return {"network": self.network.state(), "means": self.means, "constant": self.constant}

    def restore(self, state):
        pass


class Forgetful(Projected):
    def state(self):
        return {**super().state(), "forgotten": self.forgotten.weight.detach().clone()}
"""


@pytest.mark.parametrize("name", ["Projected", "Forgetful"])
def test_constants_need_no_training_and_parameters_do(name, tmp_path):
    path = tmp_path / "projected.py"
    path.write_text(PROJECTED)
    case = make_case(f"{path}:{name}")
    if name == "Projected":
        parameters_are_trained(case)
    else:
        with pytest.raises(Failure, match="forgotten"):
            parameters_are_trained(case)
