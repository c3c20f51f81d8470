"""Test that a resumed run has the outcome of the sessions before it was stopped."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import CheckpointError
from fewmore.methods.base import Method, Recipe
from fewmore.research import protocol
from fewmore.research.protocol import Outcome
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.runtime import Runtime

RECIPE = Recipe("mean color", "none", Transform(8, (0.5,) * 3, (0.5,) * 3, "pad"))


class MeanColor(Method):
    """Classify by the mean color of a class, and keep all images."""

    keeps = "images"

    def __init__(self) -> None:
        super().__init__(RECIPE, Runtime(), 0)
        self.means = torch.empty(0, 3)
        self.kept: list[ImageSet] = []

    def fit(self, base: ImageSet) -> None:
        self.learn(base)

    def learn(self, session: ImageSet) -> None:
        colors = self.colors(session)
        classes = range(len(session.class_names))
        means = [colors[session.labels == label].mean(0) for label in classes]
        self.means = torch.cat([self.means, torch.stack(means)])
        self.kept.append(session)

    def colors(self, images: ImageSet) -> Tensor:
        views = [images.image(index).float().mean((1, 2)) for index in range(len(images))]
        return torch.stack(views)

    def scores(self, images: ImageSet) -> Tensor:
        return -torch.cdist(self.colors(images), self.means) / 100

    def images_kept(self) -> int:
        return sum(map(len, self.kept))

    def state(self) -> dict[str, object]:
        kept = {str(place): images.state() for place, images in enumerate(self.kept)}
        return {"means": self.means, "kept": kept}

    def restore(self, state: dict[str, object]) -> None:
        self.means = state["means"]
        self.kept = [ImageSet.from_state(images) for images in state["kept"].values()]


class Stopped(Exception):
    """Stop a run."""


def run_until(sessions: int, task: Task, path: Path) -> None:
    """Run, and stop when this many sessions are saved and one more is learnt."""

    def stop(outcome: Outcome) -> None:
        if outcome.sessions > sessions:
            raise Stopped

    protocol.run(MeanColor(), task, Runtime(checkpoint=Checkpoint(path)), stop)


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_a_resumed_run_remembers_images_kept_and_confidence(
    tiny_task: Task, tmp_path: Path, sessions: int
) -> None:
    expected = protocol.run(MeanColor(), tiny_task, Runtime())
    assert expected.images_kept == [48, 54, 60]
    assert expected.confidence.shape == (40,)
    assert len(expected.confidence.unique()) > 10
    path = tmp_path / "checkpoint"
    if sessions < 3:
        with pytest.raises(Stopped):
            run_until(sessions, tiny_task, path)
    else:
        run_until(sessions, tiny_task, path)
    resumed = protocol.run(MeanColor(), tiny_task, Runtime(checkpoint=Checkpoint(path)))
    assert resumed.images_kept == expected.images_kept
    assert torch.equal(resumed.confidence, expected.confidence)
    assert torch.equal(resumed.predictions[""], expected.predictions[""])


def relabelled(images: ImageSet) -> ImageSet:
    """Move one image from the first class to the second."""
    labels = images.labels.clone()
    labels[(labels == 0).nonzero()[0]] = 1
    return replace(images, labels=labels)


class StopsInStage1(MeanColor):
    """Stop in the middle of the base session, with a checkpoint of stage 1."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime

    def fit(self, base: ImageSet) -> None:
        assert self.runtime.checkpoint is not None
        self.runtime.checkpoint.save("pretrain", {"round": 1})
        raise Stopped


def test_a_run_that_was_stopped_in_stage_1_is_not_resumed_with_other_images(
    tiny_task: Task, tmp_path: Path
) -> None:
    def runtime() -> Runtime:
        return Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint"))

    stopped = runtime()
    with pytest.raises(Stopped):
        protocol.run(StopsInStage1(stopped), tiny_task, stopped)
    with pytest.raises(CheckpointError, match="began with other images"):
        protocol.run(MeanColor(), replace(tiny_task, train=relabelled(tiny_task.train)), runtime())
    assert protocol.run(MeanColor(), tiny_task, runtime()).sessions == 3


def test_a_run_is_not_resumed_with_other_images(tiny_task: Task, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(Stopped):
        run_until(1, tiny_task, path)
    first, second, third = tiny_task.split.sessions
    fewer = replace(second, indices=second.indices[1:])
    others = (
        replace(tiny_task, train=relabelled(tiny_task.train)),
        replace(tiny_task, test=tiny_task.test.select(torch.arange(1, len(tiny_task.test)))),
        replace(tiny_task, split=replace(tiny_task.split, sessions=(first, fewer, third))),
    )
    for other in others:
        with pytest.raises(CheckpointError, match="began with other images"):
            protocol.run(MeanColor(), other, Runtime(checkpoint=Checkpoint(path)))
    resumed = protocol.run(MeanColor(), tiny_task, Runtime(checkpoint=Checkpoint(path)))
    assert resumed.sessions == 3
