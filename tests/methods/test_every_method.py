"""Examine every registered method, and again with trained prototypes where it can do both."""

import dataclasses
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fewmore.data.images import ImageSet
from fewmore.errors import NotFittedError
from fewmore.methods import METHODS, MethodInfo, find
from fewmore.methods.base import FrozenBackbone, Method, MethodConfig, Recipe
from fewmore.methods.network import Network
from fewmore.research import integrity, protocol
from fewmore.training.checkpoint import Checkpoint, State, read_state, write_state
from fewmore.training.runtime import Runtime

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
)
CASES = [(name, True) for name in (*METHODS, *EXAMPLES)] + [
    (name, False) for name in TRAINS_PROTOTYPES
]
if users_method := os.environ.get("FEWMORE_EXAM"):  # path/to/file.py:ClassName, examined alone
    CASES = [(users_method, True)]
TOLERANCE = 1e-5  # of scores that differ only in the order of additions


@dataclass(frozen=True)
class Case:
    """Hold a method to examine, and the images that it sees."""

    info: MethodInfo
    recipe: Recipe
    base: ImageSet
    sessions: tuple[ImageSet, ...]
    test: ImageSet
    data_init: bool

    def build(self, seed: int = 0, runtime: Runtime | None = None) -> Method:
        return self.info.build(self.recipe, runtime or Runtime(), seed)

    def fitted(self, sessions: int = 0, seed: int = 0) -> Method:
        method = self.build(seed)
        method.fit(self.base)
        for session in self.sessions[:sessions]:
            method.learn(session)
        return method

    def expected(self, sessions: int) -> tuple[State, Tensor]:
        """Return state and scores after some sessions; computed once, as many tests need them."""
        key = (self.info.name, self.recipe.method, sessions)
        if key not in _expected:
            method = self.fitted(sessions)
            _expected[key] = (method.state(), method.scores(self.test))
        return _expected[key]

    def classes(self, sessions: int) -> int:
        return len(self.base.class_names) + sum(
            len(s.class_names) for s in self.sessions[:sessions]
        )


_expected: dict[tuple[str, MethodConfig, int], tuple[State, Tensor]] = {}


@pytest.fixture(
    params=CASES,
    ids=[find(name).name + ("" if data_init else "-trained") for name, data_init in CASES],
)
def case(request, tiny_task, small_recipe) -> Case:
    name, data_init = request.param
    recipe = small_recipe("quick", tiny_task.benchmark, name, f"session.data_init={data_init}")
    base, *sessions = (
        session.select_from(tiny_task.train).compact() for session in tiny_task.split.sessions
    )
    return Case(find(name), recipe, base, tuple(sessions), tiny_task.test, data_init)


def tensors(state: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a state, with its path."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from tensors(value, f"{name}/{key}")


def assert_same(one: object, other: object) -> None:
    """Check that two states are the same, bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


# ---- the contract


def test_every_call_before_fit_raises_not_fitted(case):
    method = case.build()
    for call in (
        lambda: method.learn(case.sessions[0]),
        lambda: method.scores(case.test),
        method.state,
    ):
        with pytest.raises(NotFittedError, match="call fit"):
            call()
    if isinstance(method, FrozenBackbone):
        with pytest.raises(NotFittedError, match="call fit"):
            method.embed(case.test)
    assert method.images_kept() == 0


def test_scores_are_finite_and_cover_every_class_seen(case):
    method = case.fitted()
    for learnt in range(len(case.sessions) + 1):
        if learnt:
            method.learn(case.sessions[learnt - 1])
        scores = method.scores(case.test)
        assert scores.shape == (len(case.test), case.classes(learnt))
        assert not scores.requires_grad
        assert torch.isfinite(scores).all()
        assert method.sessions == learnt + 1


def test_other_scores_have_the_same_shape(case):
    method = case.fitted(1)
    if isinstance(method, FrozenBackbone):
        features = method.embed(case.test)
        assert torch.equal(method.scores_of(features), method.scores(case.test))
        for scores in method.also_scores_of(features).values():
            assert scores.shape == (len(case.test), case.classes(1))


def test_scoring_changes_nothing(case):
    method = case.fitted(1)
    before = method.state()
    first = method.scores(case.test)
    assert torch.equal(first, method.scores(case.test))
    assert_same(before, method.state())


def test_scores_of_an_image_do_not_depend_on_the_others(case):
    method = case.fitted(1)
    together = method.scores(case.test)
    some = torch.tensor([3, 17, 30])
    torch.testing.assert_close(
        method.scores(case.test.select(some)), together[some], atol=TOLERANCE, rtol=TOLERANCE
    )


def test_it_learns_something(case):
    """Check the accuracy on base classes, after more epochs than in the other tests."""
    longer = dataclasses.replace(case.recipe.pretrain, epochs=12, milestones=(9,))
    method = case.info.build(dataclasses.replace(case.recipe, pretrain=longer), Runtime(), 0)
    method.fit(case.base)
    test = case.test.select_classes(range(len(case.base.class_names)))
    assert (method.scores(test).argmax(1) == test.labels).float().mean() > 0.7


# ---- randomness


def test_same_seed_same_result(case):
    state, scores = case.expected(2)
    again = case.fitted(2)
    assert_same(again.state(), state)
    assert torch.equal(again.scores(case.test), scores)


def test_another_seed_another_result(case):
    assert not torch.equal(case.fitted(1, seed=1).scores(case.test), case.expected(1)[1])


def global_state() -> list[object]:
    """Return all that a method might leave changed in the process."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return [
        torch.get_rng_state().tolist(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in numpy_state],
        random.getstate(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    ]


def test_global_state_is_unchanged(case):
    before = global_state()
    method = case.build()
    assert global_state() == before, "the constructor"
    method.fit(case.base)
    assert global_state() == before, "fit"
    method.learn(case.sessions[0])
    assert global_state() == before, "learn"
    method.scores(case.test)
    assert global_state() == before, "scores"
    case.build().restore(method.state())
    assert global_state() == before, "restore"


def test_global_seeds_do_not_matter(case):
    state, _ = case.expected(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        assert_same(case.fitted(1).state(), state)


# ---- states


def test_a_state_is_tensors_and_json(case):
    def check(value: object) -> None:
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            for inner in value.values():
                check(inner)
        elif isinstance(value, Tensor):
            assert not value.requires_grad
        else:
            assert json.loads(json.dumps(value)) == value

    check(case.expected(1)[0])


@pytest.mark.parametrize("learnt", [0, 1])
def test_restore_is_the_identity_and_learning_goes_on(case, learnt, tmp_path):
    method = case.fitted(learnt)
    write_state(tmp_path / "state.safetensors", method.state())
    for state in (method.state(), read_state(tmp_path / "state.safetensors")):
        copy = case.build()
        copy.restore(state)
        assert torch.equal(copy.scores(case.test), method.scores(case.test))
        assert_same(copy.state(), method.state())
        assert (copy.sessions, copy.images_kept()) == (method.sessions, method.images_kept())
        copy.learn(case.sessions[learnt])
        then, scores = case.expected(learnt + 1)
        assert_same(copy.state(), then)
        assert torch.equal(copy.scores(case.test), scores)


def test_a_state_is_a_snapshot(case):
    method = case.fitted(1)
    before, state = method.scores(case.test), method.state()
    method.learn(case.sessions[1])
    copy = case.build()
    copy.restore(state)
    assert torch.equal(copy.scores(case.test), before)
    copy.learn(case.sessions[1])
    again = case.build()
    again.restore(state)  # what was learnt after a restore has not changed it either
    assert torch.equal(again.scores(case.test), before)


class Stopped(Exception):
    """Stand in for a kill."""


def test_a_run_that_is_interrupted_repeatedly_ends_the_same(case, tiny_task, tmp_path):
    whole = case.build()
    expected = protocol.run(whole, tiny_task, Runtime())
    reports = 0

    def stop_at_second_report(_: object) -> None:
        nonlocal reports
        reports += 1
        if reports == 2:
            raise Stopped

    outcome = None
    stops = 0
    while outcome is None and stops < 50:
        reports = 0
        runtime = Runtime(
            checkpoint=Checkpoint(tmp_path / "checkpoint.safetensors", every=0),
            on_round=stop_at_second_report,
        )
        method = case.build(runtime=runtime)
        try:
            outcome = protocol.run(method, tiny_task, runtime, stop_at_second_report)
        except Stopped:
            stops += 1
    assert 2 <= stops < 50
    assert_same(method.state(), whole.state())
    assert_same(outcome.predictions, expected.predictions)


# ---- input


def test_images_and_labels_are_not_modified(case):
    shown = [case.base, *case.sessions, case.test]
    before = [(one.storage.clone(), one.indices.clone(), one.labels.clone()) for one in shown]
    method = case.fitted(len(case.sessions))
    method.scores(case.test)
    for one, copies in zip(shown, before, strict=True):
        assert all(
            torch.equal(now, copy)
            for now, copy in zip((one.storage, one.indices, one.labels), copies, strict=True)
        )


def test_how_images_are_stored_does_not_matter(case, tiny_task):
    """Check that a view of a larger storage gives the same as a compact copy."""
    method = case.build()
    base, first, *_ = (session.select_from(tiny_task.train) for session in tiny_task.split.sessions)
    method.fit(base)
    method.learn(first)
    assert torch.equal(method.scores(case.test), case.expected(1)[1])


def test_order_of_classes_does_not_matter_for_class_means(case):
    if case.info.ordered or not case.data_init:
        pytest.skip("trained prototypes depend on the order")
    known, session = len(case.base.class_names), case.sessions[0]
    _, expected = case.expected(1)
    state, _ = case.expected(0)

    swapped = case.build()
    swapped.restore(state)
    swapped.learn(session.select_classes([1, 0]))
    scores = swapped.scores(case.test)
    torch.testing.assert_close(
        scores[:, [*range(known), known + 1, known]], expected, atol=TOLERANCE, rtol=TOLERANCE
    )

    backwards = case.build()
    backwards.restore(state)
    backwards.learn(session.select(torch.arange(len(session) - 1, -1, -1)))
    torch.testing.assert_close(
        backwards.scores(case.test), expected, atol=TOLERANCE, rtol=TOLERANCE
    )

    split = case.build()
    split.restore(state)
    split.learn(session.select_classes([0]).compact())
    split.learn(session.select_classes([1]).compact())
    torch.testing.assert_close(split.scores(case.test), expected, atol=TOLERANCE, rtol=TOLERANCE)


def count_images(value: object, visited: set[int]) -> int:
    """Count the images reachable from an object: image sets, and uint8 tensors of images."""
    if id(value) in visited:
        return 0
    visited.add(id(value))
    if isinstance(value, ImageSet):
        return len(value.storage)
    if isinstance(value, Tensor):
        return len(value) if value.dtype == torch.uint8 and value.dim() == 4 else 0
    if isinstance(value, dict):
        return sum(count_images(inner, visited) for inner in value.values())
    if isinstance(value, (list, tuple, set)):
        return sum(count_images(inner, visited) for inner in value)
    if hasattr(value, "__dict__") and not callable(value):
        return count_images(vars(value), visited)
    return 0


def test_it_keeps_no_more_images_than_it_declares(case):
    method = case.fitted()
    for learnt in range(len(case.sessions) + 1):
        if learnt:
            method.learn(case.sessions[learnt - 1])
        method.scores(case.test)
        kept = method.images_kept()
        if case.info.memory == "none":
            assert kept == 0
        assert count_images(vars(method), set()) <= kept
        assert integrity.count_images(method, method.state(), case.base) <= kept
        pixels = sum(t.numel() for _, t in tensors(method.state()) if t.dtype == torch.uint8)
        assert pixels <= kept * case.base.image(0).numel()


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


# ---- training


def parameters(value: object) -> Iterator[nn.Parameter]:
    """Yield every parameter of the modules that an object holds, or its parts."""
    if isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, dict):
        for inner in value.values():
            yield from parameters(inner)
    elif isinstance(value, Network):
        yield from parameters(vars(value))


def test_every_parameter_is_trained(case):
    no_decay = dataclasses.replace(case.recipe.pretrain, weight_decay=0.0)
    moved: dict[int, bool] = {}
    sizes: dict[int, int] = {}

    def look(parameters: Iterable[Tensor]) -> None:
        for p in parameters:
            moved[id(p)] = moved.get(id(p), False) or (p.grad is not None and bool(p.grad.any()))
            sizes[id(p)] = p.numel()

    def state_after_fit(**changes: float) -> dict[str, Tensor]:
        recipe = dataclasses.replace(case.recipe, pretrain=dataclasses.replace(no_decay, **changes))
        method = case.info.build(recipe, Runtime(), 0)
        method.fit(case.base)
        trainable[:] = [p.detach() for p in parameters(vars(method)) if p.requires_grad]
        return dict(tensors(method.state()))

    trainable: list[Tensor] = []
    handle = register_optimizer_step_pre_hook(
        lambda optimizer, *_: look(p for group in optimizer.param_groups for p in group["params"])
    )
    try:
        after = state_after_fit()
    finally:
        handle.remove()
    assert moved
    assert all(moved.values()), (
        f"{sum(not m for m in moved.values())} of {len(moved)} parameters had no gradient"
    )
    backbone = {
        name: t for name, t in after.items() if "/backbone/" in name and "running" not in name
    }
    dim = 64  # of resnet8
    assert (
        sum(sizes.values())
        >= sum(t.numel() for t in backbone.values()) + len(case.base.class_names) * dim
    )
    still = state_after_fit(lr=0.0)
    unchanged = [
        name for name, t in after.items() if t.is_floating_point() and torch.equal(t, still[name])
    ]
    if case.info.name not in METHODS:  # a user's method may hold constants, no parameters, though
        unchanged = [
            name for name in unchanged if any(torch.equal(still[name], p) for p in trainable)
        ]
    assert unchanged == []


def test_frozen_features_do_not_change(case):
    method = case.fitted()
    if not isinstance(method, FrozenBackbone):
        pytest.skip("the backbone is not frozen")
    before = method.embed(case.test)
    for session in case.sessions:
        method.learn(session)
        assert torch.equal(method.embed(case.test), before)


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


@pytest.mark.skipif(bool(users_method), reason="examines the exam, not the user's method")
@pytest.mark.parametrize("name", ["Projected", "Forgetful"])
def test_constants_need_no_training_and_parameters_do(name, tiny_task, small_recipe, tmp_path):
    path = tmp_path / "projected.py"
    path.write_text(PROJECTED)
    method = f"{path}:{name}"
    recipe = small_recipe("quick", tiny_task.benchmark, method)
    base = tiny_task.split.sessions[0].select_from(tiny_task.train).compact()
    case = Case(find(method), recipe, base, (), tiny_task.test, True)
    if name == "Projected":
        test_every_parameter_is_trained(case)
    else:
        with pytest.raises(AssertionError, match="forgotten"):
            test_every_parameter_is_trained(case)
