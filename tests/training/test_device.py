"""Test how a device is chosen and prepared, with mocked GPUs."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fewmore.errors import ConfigError
from fewmore.training import device as module
from fewmore.training.device import CUDNN_CANDIDATES, prepare_device, select_device

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def mock_gpus(monkeypatch: pytest.MonkeyPatch, cuda: int = 0, mps: bool = False) -> None:
    """Let PyTorch report a number of NVIDIA GPUs, and perhaps an Apple GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize("name", ["gpu", "cuda0", "cuda:x", "cuda:-1", "tpu:0", "cpu:a", " cpu"])
def test_unknown_devices_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mock_gpus(monkeypatch, cuda=2, mps=True)
    with pytest.raises(ConfigError, match=f"{name}: .*cpu, cuda or mps"):
        select_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1", "mps"])
def test_a_gpu_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mock_gpus(monkeypatch)
    with pytest.raises(ConfigError, match=f"{name}: .*--device cpu"):
        select_device(name)


def test_gpus_are_numbered_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    mock_gpus(monkeypatch, cuda=2)
    assert select_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match=r"cuda:2: .*only 2 GPUs.*--device cuda"):
        select_device("cuda:2")


def test_a_gpu_is_chosen_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mock_gpus(monkeypatch)
    assert select_device(None) == CPU
    mock_gpus(monkeypatch, mps=True)
    assert select_device(None) == CPU, "an Apple GPU must be named"
    assert select_device("mps") == torch.device("mps")
    mock_gpus(monkeypatch, cuda=1)
    assert select_device(None) == CUDA
    assert select_device("cpu") == CPU


# Preparation


def cuda_settings() -> tuple[Any, ...]:
    """Return the settings of PyTorch that a preparation may change."""
    cudnn = torch.backends.cudnn
    tf32 = (torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32)
    return cudnn.benchmark, cudnn.benchmark_limit, *tf32


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Return the devices whose warm-up was started; settings are restored after the test."""
    devices: list[torch.device] = []
    monkeypatch.setattr(module, "start_warm_up", devices.append)
    cudnn = torch.backends.cudnn
    before = cuda_settings()
    yield devices
    cudnn.benchmark, cudnn.benchmark_limit = before[:2]
    torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32 = before[2:]


@pytest.mark.parametrize("device", [CPU, torch.device("mps")], ids=str)
@pytest.mark.parametrize("precision", [None, "fp32", "tf32", "bf16"])
def test_a_device_without_cuda_needs_no_preparation(
    warmed: list[torch.device], device: torch.device, precision: str | None
) -> None:
    before = cuda_settings()
    prepare_device(device, precision=precision)
    assert cuda_settings() == before
    assert warmed == []


@pytest.mark.parametrize("accel", [True, False])
def test_a_gpu_times_cudnns_kernels_and_is_warmed_up(
    warmed: list[torch.device], accel: bool
) -> None:
    tf32_before = cuda_settings()[2:]
    prepare_device(CUDA, accel)
    assert cuda_settings() == (True, CUDNN_CANDIDATES, *tf32_before)
    assert warmed == ([CUDA] if accel else [])


@pytest.mark.usefixtures("warmed")
@pytest.mark.parametrize(("precision", "tf32"), [("tf32", True), ("fp32", False)])
def test_tf32_is_set_as_requested(precision: str, tf32: bool) -> None:
    prepare_device(CUDA, precision=precision)
    assert cuda_settings()[2:] == (tf32, tf32)
