"""Define the checks of the exam: what every method must do, whatever its idea is.

A check is a function of a case. It raises Failure with a sentence, or NotApplicable.
"""

import dataclasses
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fewmore.data.images import ImageSet
from fewmore.errors import MethodError, NotFittedError, describe
from fewmore.methods import METHODS
from fewmore.methods.base import FrozenBackbone, Method
from fewmore.methods.network import Network
from fewmore.research import integrity, protocol
from fewmore.research.exam_world import Case
from fewmore.training.checkpoint import Checkpoint, read_state, write_state
from fewmore.training.runtime import Round, Runtime

TOLERANCE = 1e-5  # of scores that differ only in the order of additions
MOST_STOPS = 50  # of a run that is stopped again and again


class Failure(Exception):
    """Say in a sentence what is wrong with a method."""


class NotFinite(Failure):
    """Say that scores are not finite: they differ from all others, and from themselves."""


class NotApplicable(Exception):
    """Say why a check does not concern a method."""


@dataclass(frozen=True)
class Check:
    """Hold a check, its name and what it means that a method passes it."""

    name: str
    meaning: str
    function: Callable[[Case], None]
    compares_scores: bool = False  # skipped where scores are not finite


CHECKS: list[Check] = []


def check(
    meaning: str, compares_scores: bool = False
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Add a function to the checks, with what it means."""

    def add(function: Callable[[Case], None]) -> Callable[[Case], None]:
        name = function.__name__.replace("_", "-")
        CHECKS.append(Check(name, meaning, function, compares_scores))
        return function

    return add


def require(condition: bool, sentence: str) -> None:
    """Raise Failure unless a condition holds."""
    if not condition:
        raise Failure(sentence)


def tensors(state: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a state, with its path."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from tensors(value, f"{name}/{key}")


def require_same(one: object, other: object, what: str, path: str = "") -> None:
    """Raise Failure unless two states are the same, bit for bit."""
    same = True
    if isinstance(one, dict) and isinstance(other, dict):
        require(one.keys() == other.keys(), f"{what}: the state has other entries{at(path)}")
        for key in one:
            require_same(one[key], other[key], what, f"{path}/{key}")
    elif isinstance(one, Tensor):
        same = isinstance(other, Tensor) and torch.equal(one, other)
    else:
        same = one == other
    require(same, f"{what}: other values{at(path)}")


def at(path: str) -> str:
    """Return where in a state something is, as the end of a sentence."""
    return f" at {path}" if path else ""


def require_close(scores: Tensor, expected: Tensor, sentence: str) -> None:
    """Raise Failure unless scores differ only in the order of additions."""
    close = scores.shape == expected.shape and torch.allclose(
        scores, expected, atol=TOLERANCE, rtol=TOLERANCE
    )
    require(close, sentence)


# ---- the contract


@check("before fit, every call raises NotFittedError and says to call fit")
def not_fitted(case: Case) -> None:
    method = case.build()
    calls: dict[str, Callable[[], object]] = {
        "learn": lambda: method.learn(case.sessions[0]),
        "scores": lambda: method.scores(case.test),
        "state": method.state,
    }
    if isinstance(method, FrozenBackbone):
        frozen = method
        calls["embed"] = lambda: frozen.embed(case.test)
    for name, call in calls.items():
        try:
            call()
        except NotFittedError as error:
            require("call fit" in str(error), f"{name} before fit does not say 'call fit'")
            continue
        except Exception as error:
            found = f"{describe(error)}, and no NotFittedError"
        else:
            found = "no NotFittedError"
        raise Failure(
            f"{name} before fit raises {found}: begin it with: if not self.sessions: "
            "raise NotFittedError('call fit first'), of fewmore.errors"
        )
    require(method.images_kept() == 0, "images are kept before fit")


@check("scores are finite, and there is one for each class seen")
def scores_cover_classes(case: Case) -> None:
    method = case.fitted()
    for learnt in range(len(case.sessions) + 1):
        if learnt:
            method.learn(case.sessions[learnt - 1])
        scores = method.scores(case.test)
        expected = (len(case.test), case.classes(learnt))
        after = f"after {learnt} new sessions"
        shape = tuple(scores.shape)
        require(shape == expected, f"{after} scores have the shape {shape}, not {expected}")
        require(not scores.requires_grad, f"{after} scores require a gradient")
        wrong = scores.numel() - int(torch.isfinite(scores).sum())
        if wrong:
            raise NotFinite(f"{after} {wrong} of {scores.numel()} scores are not finite")
        require(
            method.sessions == learnt + 1,
            f"{after} method.sessions is {method.sessions}, not {learnt + 1}: fit sets it to 1, "
            "learn adds 1",
        )


@check(
    "scores_of(embed(images)) is scores(images), and other scores have the same shape",
    compares_scores=True,
)
def other_scores(case: Case) -> None:
    method = case.fitted()
    if not isinstance(method, FrozenBackbone):
        raise NotApplicable("the backbone is not frozen")
    names = set(method.also_scores_of(method.embed(case.test)))
    method.learn(case.sessions[0])
    features = method.embed(case.test)
    later = set(method.also_scores_of(features))
    require(names == later, f"there are other scores after learn: {sorted(names ^ later)}")
    same = torch.equal(method.scores_of(features), method.scores(case.test))
    require(same, "scores_of(embed(images)) differs from scores(images)")
    for name, scores in method.also_scores_of(features).items():
        right = scores.shape == (len(case.test), case.classes(1))
        require(right, f"the scores '{name}' have the shape {tuple(scores.shape)}")


@check("scoring changes nothing", compares_scores=True)
def scoring_changes_nothing(case: Case) -> None:
    method = case.fitted(1)
    before = method.state()
    first = method.scores(case.test)
    require(torch.equal(first, method.scores(case.test)), "scoring twice gives two results")
    require_same(before, method.state(), "after scoring")


@check("the scores of an image do not depend on the other images", compares_scores=True)
def batch_independence(case: Case) -> None:
    method = case.fitted(1)
    together = method.scores(case.test)
    some = torch.tensor([3, 17, 30])
    alone = method.scores(case.test.select(some))
    require_close(alone, together[some], "images scored in another batch get other scores")


@check("base classes are told apart after a few epochs", compares_scores=True)
def learns_something(case: Case) -> None:
    longer = dataclasses.replace(case.recipe.pretrain, epochs=12, milestones=(9,))
    method = case.info.build(dataclasses.replace(case.recipe, pretrain=longer), Runtime(), 0)
    method.fit(case.base)
    test = case.test.select_classes(range(len(case.base.class_names)))
    accuracy = float((method.scores(test).argmax(1) == test.labels).float().mean())
    require(accuracy > 0.7, f"the accuracy on base classes is {accuracy:.2f}, at most 0.7")


# ---- randomness


@check("the same seed gives the same result, bit for bit", compares_scores=True)
def same_seed(case: Case) -> None:
    state, scores = case.expected(2)
    again = case.fitted(2)
    require_same(again.state(), state, "a second run with the same seed")
    require(torch.equal(again.scores(case.test), scores), "a second run gives other scores")


@check("another seed gives another result", compares_scores=True)
def another_seed(case: Case) -> None:
    other = case.fitted(1, seed=1).scores(case.test)
    require(not torch.equal(other, case.expected(1)[1]), "seed 1 gives the scores of seed 0")


TORCH_GENERATOR = "the global generator of torch"
DRAWN_WEIGHTS = (
    "; nn.Linear and other modules draw weights from it when they are made: make them under "
    "torch.random.fork_rng(devices=[]) or by torch.nn.utils.skip_init, and draw their weights from "
    "a generator made of self.seed"
)


def global_state() -> dict[str, object]:
    """Return all that a method might leave changed in the process, by what messages call it."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return {
        TORCH_GENERATOR: torch.get_rng_state().tolist(),
        "the global generator of numpy": [
            part.tolist() if isinstance(part, np.ndarray) else part for part in numpy_state
        ],
        "the global generator of random": random.getstate(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's autocast mode": torch.is_autocast_enabled("cpu"),
        "torch's number of threads": torch.get_num_threads(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's precision of matrix products": torch.get_float32_matmul_precision(),
    }


@check("global generators and modes of the process are left unchanged")
def global_state_unchanged(case: Case) -> None:
    before = global_state()

    def look(where: str) -> None:
        changed = [name for name, value in global_state().items() if value != before[name]]
        remedy = DRAWN_WEIGHTS if TORCH_GENERATOR in changed else ""
        require(not changed, f"{where} changes {', '.join(changed)}{remedy}")

    method = case.build()
    look("the constructor")
    method.fit(case.base)
    look("fit")
    method.learn(case.sessions[0])
    look("learn")
    method.scores(case.test)
    look("scores")
    case.build().restore(method.state())
    look("restore")


@check("global seeds do not matter")
def global_seeds(case: Case) -> None:
    state, _ = case.expected(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12345)
        require_same(case.fitted(1).state(), state, "with another global seed of torch")


# ---- states


@check("a state is nested dicts of tensors and JSON values")
def state_is_plain(case: Case) -> None:
    def look(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                require(isinstance(key, str), f"a key that is no text{at(path)}")
                look(inner, f"{path}/{key}")
        elif isinstance(value, Tensor):
            require(not value.requires_grad, f"a tensor requires a gradient{at(path)}")
        else:
            try:
                same = json.loads(json.dumps(value)) == value
            except (TypeError, ValueError):
                same = False
            require(same, f"{type(value).__name__} is not a JSON value{at(path)}")

    look(case.expected(1)[0], "")


@check(
    "restore is the identity, also through a file, and learning goes on from there",
    compares_scores=True,
)
def restore_is_identity(case: Case) -> None:
    for learnt in (0, 1):
        method = case.fitted(learnt)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            write_state(path, method.state())
            states = (method.state(), read_state(path))
        for state in states:
            copy = case.restored(state)
            scores = copy.scores(case.test)
            require(torch.equal(scores, method.scores(case.test)), "restore changes scores")
            require_same(copy.state(), method.state(), "after restore")
            counts = (copy.sessions, copy.images_kept())
            same = counts == (method.sessions, method.images_kept())
            require(same, "restore changes `sessions` or `images_kept()`")
            copy.learn(case.sessions[learnt])
            then, expected = case.expected(learnt + 1)
            require_same(copy.state(), then, "learning after restore")
            same = torch.equal(copy.scores(case.test), expected)
            require(same, "learning after restore leads to other scores")


@check("a state is a snapshot: what is learnt later does not change it", compares_scores=True)
def state_is_snapshot(case: Case) -> None:
    method = case.fitted(1)
    before, state = method.scores(case.test), method.state()
    method.learn(case.sessions[1])
    copy = case.restored(state)
    require(torch.equal(copy.scores(case.test), before), "learning changes an earlier state")
    copy.learn(case.sessions[1])
    again = case.restored(state)
    same = torch.equal(again.scores(case.test), before)
    require(same, "learning after restore changes the state that was restored")


class Stopped(Exception):
    """Stand in for a kill."""


@check("a run that is stopped again and again ends as if it never was", compares_scores=True)
def interrupted_run(case: Case) -> None:
    whole = case.build()
    expected = protocol.run(whole, case.task, Runtime())
    reports = 0

    def stop_at_second_report(_: object) -> None:
        nonlocal reports
        reports += 1
        if reports == 2:
            raise Stopped

    outcome = None
    stops = 0
    with tempfile.TemporaryDirectory() as folder:
        while outcome is None and stops < MOST_STOPS:
            reports = 0
            checkpoint = Checkpoint(Path(folder) / "checkpoint.safetensors", every=0)
            runtime = Runtime(checkpoint=checkpoint, on_round=stop_at_second_report)
            method = case.build(runtime=runtime)
            try:
                outcome = protocol.run(method, case.task, runtime, stop_at_second_report)
            except Stopped:
                stops += 1
    if outcome is None:
        raise Failure("a run that is stopped at every second report does not come to its end")
    require(stops >= 2, f"only {stops} stops: training does not report its rounds")
    require_same(method.state(), whole.state(), "after interruptions")
    require_same(outcome.predictions, expected.predictions, "predictions after interruptions")


# ---- input


@check("images and labels are not modified")
def input_unchanged(case: Case) -> None:
    shown = [case.base, *case.sessions, case.test]

    def contents(one: ImageSet) -> tuple[Tensor, ...]:
        assert isinstance(one.storage, Tensor)  # images of one size
        return one.storage, one.indices, one.labels

    before = [tuple(part.clone() for part in contents(one)) for one in shown]
    method = case.fitted(len(case.sessions))
    method.scores(case.test)
    for one, copies in zip(shown, before, strict=True):
        same = all(torch.equal(a, b) for a, b in zip(contents(one), copies, strict=True))
        require(same, "images or labels that the method was given have changed")


@check("how images are stored does not matter", compares_scores=True)
def storage_independence(case: Case) -> None:
    method = case.build()
    sessions = case.task.split.sessions
    base, first, *_ = (session.select_from(case.task.train) for session in sessions)
    method.fit(base)
    method.learn(first)
    same = torch.equal(method.scores(case.test), case.expected(1)[1])
    require(same, "a view of a larger storage gives other scores than a compact copy")


ORDERED = "; if that is meant, say so in the class: ordered = True"


@check(
    "neither the order of classes nor their grouping into sessions matters", compares_scores=True
)
def order_independence(case: Case) -> None:
    if case.ordered:
        raise NotApplicable("what it learns depends on the order of classes")
    known, session = len(case.base.class_names), case.sessions[0]
    _, expected = case.expected(1)
    state, _ = case.expected(0)

    swapped = case.restored(state)
    swapped.learn(session.select_classes([1, 0]))
    scores = swapped.scores(case.test)[:, [*range(known), known + 1, known]]
    require_close(scores, expected, f"classes in another order get other scores{ORDERED}")

    backwards = case.restored(state)
    backwards.learn(session.select(torch.arange(len(session) - 1, -1, -1)))
    backwards_scores = backwards.scores(case.test)
    require_close(
        backwards_scores, expected, f"images in another order lead to other scores{ORDERED}"
    )

    split = case.restored(state)
    split.learn(session.select_classes([0]).compact())
    split.learn(session.select_classes([1]).compact())
    split_scores = split.scores(case.test)
    require_close(split_scores, expected, f"two sessions instead of one: other scores{ORDERED}")


# ---- memory


@check("no more old images are kept than declared, float copies included")
def images_kept(case: Case) -> None:
    method = case.fitted()
    for learnt in range(len(case.sessions) + 1):
        if learnt:
            method.learn(case.sessions[learnt - 1])
        method.scores(case.test)
        kept = method.images_kept()
        if case.info.memory == "none":
            require(kept == 0, f"it keeps {kept} images and declares none: set `keeps`")
        state = method.state()
        pixels = sum(t.numel() for _, t in tensors(state) if t.dtype == torch.uint8)
        held = max(
            integrity.count_images(method, state, case.base),
            -(-pixels // case.base.image(0).numel()),
        )
        require(held <= kept, f"it holds {held} images, and images_kept() says {kept}")


# ---- training


def parameters(value: object) -> Iterator[nn.Parameter]:
    """Yield every parameter of the modules that an object holds, or its parts."""
    if isinstance(value, nn.Parameter):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from parameters(inner)
    elif isinstance(value, Network):
        yield from parameters(vars(value))


def fitted_with(case: Case, before_step: Callable[[Optimizer], None]) -> Method:
    """Construct and fit a method; a function is called before each step of its optimizers."""
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: before_step(optimizer))
    try:
        return case.fitted()
    finally:
        handle.remove()


@check("every parameter gets a gradient and is trained")
def parameters_are_trained(case: Case) -> None:
    had_gradient: dict[int, bool] = {}  # by id of the parameter
    sizes: dict[int, int] = {}

    def note_gradients(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0  # which alone trains nothing
            for p in group["params"]:
                has_gradient = p.grad is not None and bool(p.grad.any())
                had_gradient[id(p)] = had_gradient.get(id(p), False) or has_gradient
                sizes[id(p)] = p.numel()

    def stop_learning(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0 * group["lr"]

    trained = dict(tensors(fitted_with(case, note_gradients).state()))
    require(bool(had_gradient), "no optimizer took a step in fit")
    idle = sum(not had for had in had_gradient.values())
    require(idle == 0, f"{idle} of {len(had_gradient)} parameters had no gradient")
    backbone = [t for name, t in trained.items() if "/backbone/" in name and "running" not in name]
    needed = sum(t.numel() for t in backbone) + len(case.base.class_names) * 64  # of resnet8
    require(sum(sizes.values()) >= needed, "fit trains fewer weights than stage 1 has")

    method = fitted_with(case, stop_learning)
    initial = dict(tensors(method.state()))
    unchanged = [
        name
        for name, t in trained.items()
        if t.is_floating_point() and torch.equal(t, initial[name])
    ]
    if case.info.name not in METHODS:  # a user's method may hold constants, no parameters, though
        trainable = [p.detach() for p in parameters(vars(method)) if p.requires_grad]
        unchanged = [
            name for name in unchanged if any(torch.equal(initial[name], p) for p in trainable)
        ]
    require(unchanged == [], f"not trained: {', '.join(unchanged)}")


@check("steps of training do nothing that would make the host wait for a GPU")
def steps_never_wait(case: Case) -> None:
    rounds: list[Round] = []
    method = case.build(runtime=Runtime(forbid_sync=True, on_round=rounds.append))
    try:
        method.fit(case.base)
        for session in case.sessions:
            method.learn(session)
    except MethodError as error:
        raise Failure(describe(error).removeprefix(f"{MethodError.__name__}: ")) from error
    if not rounds:
        raise NotApplicable("it does not train by training/loop.py")


@check("frozen features do not change when sessions are learnt")
def frozen_features(case: Case) -> None:
    method = case.fitted()
    if not isinstance(method, FrozenBackbone):
        raise NotApplicable("the backbone is not frozen")
    before = method.embed(case.test)
    for session in case.sessions:
        method.learn(session)
        same = torch.equal(method.embed(case.test), before)
        require(same, "embed gives other features after learn; derive from Method instead")
