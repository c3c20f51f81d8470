"""The comparison's methods on a GPU: their sessions are captured, and nothing waits."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fewmore.data.benchmarks import Task
from fewmore.methods import METHODS
from fewmore.methods.base import Method, Recipe
from fewmore.training.runtime import Runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers warn of things that are not ours
]

CUDA = torch.device("cuda", 0)
EAGER = frozenset({"batch-norm", "conv"})  # fused layers, but no graphs and no side streams
NAMES = ("icarl", "eeil", "lucir", "topic")


def learnt(task: Task, name: str, recipe: Recipe, runtime: Runtime) -> Method:
    method = METHODS[name].build(recipe, runtime, 0)
    base, *sessions = (session.select_from(task.train).compact() for session in task.split.sessions)
    method.fit(base)
    for session in sessions:
        method.learn(session)
    return method


@pytest.fixture
def task(tiny_task: Task) -> Task:
    return replace(tiny_task, train=tiny_task.train.to(CUDA), test=tiny_task.test.to(CUDA))


@pytest.mark.parametrize("accel", [EAGER, True], ids=["eager", "captured"])
@pytest.mark.parametrize("frozen", [False, True], ids=["norms move", "norms stand still"])
@pytest.mark.parametrize("name", NAMES)
def test_no_step_of_a_session_makes_the_host_wait(
    task: Task,
    small_recipe: Callable[..., Recipe],
    name: str,
    frozen: bool,
    accel: bool | frozenset[str],
) -> None:
    settings = (f"session.frozen_norm={frozen}", "session.lr=0.001")
    recipe = small_recipe("quick", task.benchmark, name, *settings)
    method = learnt(task, name, recipe, Runtime(CUDA, accel=accel, forbid_sync=True))
    assert torch.isfinite(method.scores(task.test)).all()
    assert method.scores(task.test).shape == (40, 8)


@pytest.mark.parametrize("name", NAMES)
def test_captured_steps_are_the_eager_ones(
    task: Task, small_recipe: Callable[..., Recipe], name: str
) -> None:
    settings = ("session.lr=0.001", "balanced.lr=0.001")
    recipe = small_recipe("quick", task.benchmark, name, *settings)
    scores = [
        learnt(task, name, recipe, Runtime(CUDA, precision="fp32", accel=accel)).scores(task.test)
        for accel in (EAGER, True)
    ]
    torch.testing.assert_close(*scores, rtol=0.05, atol=0.05)
