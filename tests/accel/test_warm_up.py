"""What is rehearsed while images load must be over before a step is captured."""

import threading

import pytest
import torch

from fewmore.accel import warm_up as rehearsal

SECONDS = 60  # that a test waits at most


@pytest.fixture
def played(monkeypatch):
    """A rehearsal of one scene that lasts until it is told to end, and the devices it was played on."""
    monkeypatch.setattr(rehearsal, "_thread", None)
    end, devices = threading.Event(), []

    def scenes(device):
        return [lambda: end.wait(SECONDS), lambda: devices.append(device)]

    monkeypatch.setattr(rehearsal, "scenes", scenes)
    yield end, devices
    end.set()


def test_training_waits_until_it_is_over(played):
    end, devices = played
    rehearsal.begin(torch.device("cuda"))
    waiting = threading.Thread(target=rehearsal.wait)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert not devices
    end.set()
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    assert devices == [torch.device("cuda")]


def test_it_is_played_once(played):
    end, devices = played
    for _ in range(2):
        rehearsal.begin(torch.device("cuda"))
    end.set()
    rehearsal.wait()
    assert len(devices) == 1


def test_a_cpu_needs_none(played):
    end, devices = played
    end.set()
    rehearsal.begin(torch.device("cpu"))
    rehearsal.wait()
    assert not devices


def test_a_gpu_that_fails_is_left_to_the_run():
    """Its message would come twice, and before that of the run."""
    tried = []

    def failing():
        tried.append(True)
        raise RuntimeError("out of memory")

    rehearsal._rehearse([failing, failing])
    assert tried == [True]


def test_its_layers_take_steps():
    before = torch.random.get_rng_state()
    scenes = rehearsal.scenes(torch.device("cpu"))
    assert torch.equal(torch.random.get_rng_state(), before), "other draws would change by it"
    steps = [scene for scene in scenes if scene.func is rehearsal._step]
    assert len(steps) >= 3
    for scene in steps:
        scene()
        layer = scene.args[0]
        assert all(p.grad is not None for p in layer.parameters())
