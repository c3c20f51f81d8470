"""Test that the warm-up is over before a step is captured, and that failures are known."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fewmore.accel import warm_up
from fewmore.io import locked

SECONDS = 60  # that a test waits at most
GPU = torch.device("cuda")


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[object]]]:
    """Give an event that ends the warm-up's first task, and the devices that were warmed up."""
    monkeypatch.setattr(warm_up, "_started", {})
    monkeypatch.setattr(warm_up, "why_unsupported", lambda device: None)
    end = threading.Event()
    devices: list[object] = []

    def tasks(device: torch.device) -> list[Callable[[], object]]:
        return [lambda: end.wait(SECONDS), lambda: devices.append(device)]

    monkeypatch.setattr(warm_up, "tasks", tasks)
    yield end, devices
    end.set()


def test_training_waits_until_it_is_over(stalled: tuple[threading.Event, list[object]]) -> None:
    end, devices = stalled
    warm_up.start_warm_up(GPU)
    waiting = threading.Thread(target=warm_up.finish, args=(GPU,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert not devices
    end.set()
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    assert devices == [GPU]


def test_a_device_is_warmed_up_once(stalled: tuple[threading.Event, list[object]]) -> None:
    end, devices = stalled
    for _ in range(2):
        warm_up.start_warm_up(GPU)
    end.set()
    assert warm_up.finish(GPU) is None
    assert len(devices) == 1


def test_a_cpu_needs_none(stalled: tuple[threading.Event, list[object]]) -> None:
    end, devices = stalled
    end.set()
    warm_up.start_warm_up(torch.device("cpu"))
    assert not devices


def test_a_failure_is_kept_with_its_first_line() -> None:
    tried: list[bool] = []

    def failing() -> None:
        tried.append(True)
        raise RuntimeError("out of memory\nand a long explanation")

    assert warm_up.WarmUp([failing, failing]).finish() == "RuntimeError: out of memory"
    assert tried == [True]


def test_one_process_at_a_time_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path))
    began, compiled = threading.Event(), threading.Event()
    with locked(tmp_path / "kernels.lock"):
        made = warm_up.WarmUp([began.set, compiled.set])
        assert began.wait(SECONDS)
        assert not compiled.wait(0.1)
    assert made.finish() is None
    assert compiled.is_set()


@pytest.mark.parametrize(
    ("attribute", "value", "word"),
    [
        ("fewmore.accel.warm_up.triton", None, "Triton"),
        ("torch.version.hip", "6.0", "NVIDIA"),
        ("torch.cuda.get_device_capability", lambda device: (7, 5), "bfloat16"),
    ],
    ids=["no Triton", "AMD", "T4"],
)
def test_gpus_without_what_the_kernels_need_are_named(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, word: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    if warm_up.triton is None:
        monkeypatch.setattr("fewmore.accel.warm_up.triton", object())
    assert warm_up.why_unsupported(GPU) is None
    monkeypatch.setattr(attribute, value)
    assert word in (warm_up.why_unsupported(GPU) or "")
