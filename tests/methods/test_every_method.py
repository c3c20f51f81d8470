"""The exam that every registered method sits, and sits again with trained rows where class means are not its only way."""

import dataclasses
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from fewmore.training.sgd import SGD
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fewmore.data.images import ImageSet
from fewmore.errors import NotFittedError
from fewmore.methods import METHODS, MethodInfo, find
from fewmore.methods.base import FrozenBackbone, Method, MethodConfig, Recipe
from fewmore.research import protocol
from fewmore.training import loop
from fewmore.training.checkpoint import Checkpoint, State, read_state, write_state
from fewmore.training.runtime import Runtime

TRAINS_ROWS = (
    "finetune",
    "linear",
    "cosine",
    "decoupled-linear",
    "decoupled-cosine",
    "decoupled-l2",
)  # where data init is off
EXAMPLE = (
    f"{Path(__file__).resolve().parents[2] / 'docs' / 'examples' / 'power_means.py'}:PowerMeans"
)
CASES = [(name, True) for name in (*METHODS, EXAMPLE)] + [(name, False) for name in TRAINS_ROWS]
if own := os.environ.get(
    "FEWMORE_EXAM"
):  # a method of one's own, path/to/file.py:ClassName, sits it alone
    CASES = [(own, True)]
SCORES = 1e-5  # how far scores may differ where only the order of additions does


@dataclass(frozen=True)
class Case:
    """A method to examine, and what it is shown."""

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
        """State and scores after some sessions; worked out once, as many questions compare with them."""
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
    """Every tensor of a state, with its path."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from tensors(value, f"{name}/{key}")


def assert_same(one: object, other: object) -> None:
    """Two states are the same, bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


# ---- the contract


def test_before_fit_it_says_what_to_call(case):
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


def test_scores_are_finite_numbers_for_every_class_seen(case):
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
        method.scores(case.test.select(some)), together[some], atol=SCORES, rtol=SCORES
    )


def test_it_learns_something(case):
    """Base classes are told apart after a little more training than elsewhere in this exam."""
    longer = dataclasses.replace(case.recipe.pretrain, epochs=12, milestones=(9,))
    method = case.info.build(dataclasses.replace(case.recipe, pretrain=longer), Runtime(), 0)
    method.fit(case.base)
    asked = case.test.select_classes(range(len(case.base.class_names)))
    assert (method.scores(asked).argmax(1) == asked.labels).float().mean() > 0.7


# ---- randomness


def test_same_seed_same_result(case):
    state, scores = case.expected(2)
    again = case.fitted(2)
    assert_same(again.state(), state)
    assert torch.equal(again.scores(case.test), scores)


def test_another_seed_another_result(case):
    assert not torch.equal(case.fitted(1, seed=1).scores(case.test), case.expected(1)[1])


def global_state() -> list[object]:
    """All that a method might leave changed in the process."""
    return [
        torch.get_rng_state().tolist(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
        random.getstate(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    ]


def test_the_process_is_left_as_it_was(case):
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
    """Stands for a kill."""


def test_a_run_that_is_stopped_again_and_again_ends_the_same(case, tiny_task, tmp_path):
    whole = case.build()
    expected = protocol.run(whole, tiny_task, Runtime())
    told = 0

    def stop_at_the_second(_: object) -> None:
        nonlocal told
        told += 1
        if told == 2:
            raise Stopped

    outcome, stops = None, 0
    while outcome is None and stops < 50:
        told = 0
        runtime = Runtime(
            checkpoint=Checkpoint(tmp_path / "checkpoint.safetensors", every=0),
            on_round=stop_at_the_second,
        )
        method = case.build(runtime=runtime)
        try:
            outcome = protocol.run(method, tiny_task, runtime, stop_at_the_second)
        except Stopped:
            stops += 1
    assert 2 <= stops < 50
    assert_same(method.state(), whole.state())
    assert_same(outcome.predictions, expected.predictions)


# ---- what it is shown


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
    """A view of a larger storage gives what a copy of its own gives."""
    method = case.build()
    base, first, *_ = (session.select_from(tiny_task.train) for session in tiny_task.split.sessions)
    method.fit(base)
    method.learn(first)
    assert torch.equal(method.scores(case.test), case.expected(1)[1])


def test_order_of_classes_does_not_matter_for_class_means(case):
    if case.info.ordered or not case.data_init:
        pytest.skip("rows that are trained depend on the order")
    known, session = len(case.base.class_names), case.sessions[0]
    _, expected = case.expected(1)
    state, _ = case.expected(0)

    swapped = case.build()
    swapped.restore(state)
    swapped.learn(session.select_classes([1, 0]))
    scores = swapped.scores(case.test)
    torch.testing.assert_close(
        scores[:, [*range(known), known + 1, known]], expected, atol=SCORES, rtol=SCORES
    )

    backwards = case.build()
    backwards.restore(state)
    backwards.learn(session.select(torch.arange(len(session) - 1, -1, -1)))
    torch.testing.assert_close(backwards.scores(case.test), expected, atol=SCORES, rtol=SCORES)

    split = case.build()
    split.restore(state)
    split.learn(session.select_classes([0]).compact())
    split.learn(session.select_classes([1]).compact())
    torch.testing.assert_close(split.scores(case.test), expected, atol=SCORES, rtol=SCORES)


def held(value: object, met: set[int]) -> int:
    """How many images are reachable from an object: sets of images, and loose tensors of bytes with three channels."""
    if id(value) in met:
        return 0
    met.add(id(value))
    if isinstance(value, ImageSet):
        return len(value.storage)
    if isinstance(value, Tensor):
        return len(value) if value.dtype == torch.uint8 and value.dim() == 4 else 0
    if isinstance(value, dict):
        return sum(held(inner, met) for inner in value.values())
    if isinstance(value, (list, tuple, set)):
        return sum(held(inner, met) for inner in value)
    return held(vars(value), met) if hasattr(value, "__dict__") and not callable(value) else 0


def test_it_keeps_no_more_images_than_it_declares(case):
    method = case.fitted()
    for learnt in range(len(case.sessions) + 1):
        if learnt:
            method.learn(case.sessions[learnt - 1])
        method.scores(case.test)
        kept = method.images_kept()
        if case.info.memory == "none":
            assert kept == 0
        assert held(vars(method), set()) <= kept
        pixels = sum(t.numel() for _, t in tensors(method.state()) if t.dtype == torch.uint8)
        assert pixels <= kept * case.base.image(0).numel()


def contents(images: ImageSet) -> Counter[tuple[str, bytes]]:
    return Counter(
        (images.class_names[int(images.labels[i])], images.image(i).numpy().tobytes())
        for i in range(len(images))
    )


def test_what_keeps_every_image_keeps_exactly_those_shown(case):
    if case.info.memory != "every image":
        pytest.skip(f"keeps {case.info.memory}")
    method = case.fitted(2)
    shown = contents(case.base) + contents(case.sessions[0]) + contents(case.sessions[1])
    assert method.images_kept() == shown.total()
    copy = case.build()
    copy.restore(method.state())
    assert contents(method.seen) == contents(copy.seen) == shown


# ---- training


def test_every_parameter_is_trained(case, monkeypatch):
    no_decay = dataclasses.replace(case.recipe.pretrain, weight_decay=0.0)
    moved: dict[int, bool] = {}
    sizes: dict[int, int] = {}

    def look(parameters: Iterable[Tensor]) -> None:
        for p in parameters:
            moved[id(p)] = moved.get(id(p), False) or (p.grad is not None and bool(p.grad.any()))
            sizes[id(p)] = p.numel()

    class Watched(SGD):
        def step(self) -> None:
            look(chain.from_iterable(self.groups))
            super().step()

    def state_after_fit(**changes: float) -> dict[str, Tensor]:
        recipe = dataclasses.replace(case.recipe, pretrain=dataclasses.replace(no_decay, **changes))
        method = case.info.build(recipe, Runtime(), 0)
        method.fit(case.base)
        return dict(tensors(method.state()))

    monkeypatch.setattr(loop, "SGD", Watched)
    # A method of one's own may train in its own way.
    handle = register_optimizer_step_pre_hook(
        lambda theirs, *_: look(p for group in theirs.param_groups for p in group["params"])
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
    assert unchanged == []


def test_frozen_features_do_not_change(case):
    method = case.fitted()
    if not isinstance(method, FrozenBackbone):
        pytest.skip("the network is trained on")
    before = method.embed(case.test)
    for session in case.sessions:
        method.learn(session)
        assert torch.equal(method.embed(case.test), before)
