"""Test the settings of a runtime: precisions, notes and what a result records."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fewmore.errors import ConfigError
from fewmore.training import fast_path
from fewmore.training.runtime import Runtime

CUDA = torch.device("cuda")


@pytest.fixture(params=[True, False], ids=["bf16", "no bf16"])
def bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Mock a GPU that supports bfloat16, or one that only emulates it."""
    native: bool = request.param
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: including_emulation or native,
    )
    return native


@pytest.mark.parametrize("precision", ["half", "fp8", "FP32", ""])
def test_an_unknown_precision_is_refused(precision: str) -> None:
    with pytest.raises(ConfigError, match=f"precision .*bf16.*'{precision}'"):
        Runtime(precision=precision)


def test_the_default_is_a_cpu_without_notes() -> None:
    runtime = Runtime()
    assert runtime.device == torch.device("cpu")
    assert not runtime.cuda
    assert runtime.used_precision == "fp32"
    assert runtime.notes() == []


def test_a_cpu_uses_bf16_where_that_is_requested() -> None:
    runtime = Runtime(precision="bf16")
    assert runtime.used_precision == "bf16"
    assert runtime.notes() == []
    weight, image = torch.ones(2, 3), torch.ones(1, 3)
    with runtime.autocast():
        assert torch.nn.functional.linear(image, weight).dtype == torch.bfloat16
    assert torch.nn.functional.linear(image, weight).dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_a_cpu_else_uses_fp32_and_says_so(precision: str) -> None:
    runtime = Runtime(precision=precision)
    assert runtime.used_precision == "fp32"
    assert isinstance(runtime.autocast(), nullcontext)
    if precision == "fp32":
        assert runtime.notes() == []
    else:
        (note,) = runtime.notes()
        assert all(word in note for word in ("cpu", precision, "fp32"))


def test_a_gpu_uses_bf16_where_it_has_it(bf16: bool) -> None:
    best = "bf16" if bf16 else "fp32"
    assert Runtime(CUDA).used_precision == best
    assert Runtime(CUDA).notes() == [], "no precision was requested"
    requested = Runtime(CUDA, "bf16")
    assert requested.used_precision == best
    assert len(requested.notes()) == (0 if bf16 else 1)
    assert all("bf16" in note and "fp32" in note for note in requested.notes())


@pytest.mark.usefixtures("bf16")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_a_gpu_uses_other_precisions_as_requested(precision: str) -> None:
    runtime = Runtime(CUDA, precision)
    assert runtime.used_precision == precision
    assert runtime.notes() == []


def test_what_a_result_records_of_a_cpu() -> None:
    record = Runtime(precision="fp16").describe()
    assert record.keys() == {"precision", "accel", "world_size", "batch_norm"}
    assert (record["world_size"], record["batch_norm"]) == (1, "sync")
    assert record["precision"] == "fp32"
    assert record["accel"].startswith("off: ")
    assert "cpu" in record["accel"]


def test_what_a_result_records_of_a_gpu(monkeypatch: pytest.MonkeyPatch, bf16: bool) -> None:
    precision = "bf16" if bf16 else "fp32"
    warm = SimpleNamespace(finish_warm_up=lambda device: None)
    monkeypatch.setattr(fast_path, "accel", warm)
    record = Runtime(CUDA).describe()
    assert (record["precision"], record["accel"]) == (precision, "on")
    assert "switched off" in Runtime(CUDA, accel=False).describe()["accel"]
    monkeypatch.setattr(fast_path, "accel", None)
    assert "not installed" in Runtime(CUDA).describe()["accel"]


@pytest.mark.usefixtures("bf16")
def test_a_warm_up_that_failed_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(finish_warm_up=lambda device: "CompilationError: no instruction")
    monkeypatch.setattr(fast_path, "accel", failed)
    recorded = {
        True: "graphs alone: CompilationError: no instruction",
        frozenset({"conv", "graphs"}): "graphs alone: CompilationError: no instruction",
        frozenset({"conv"}): "off: CompilationError: no instruction",
        False: "off: switched off",
    }
    for accel, expected in recorded.items():
        assert Runtime(CUDA, accel=accel).describe()["accel"] == expected
