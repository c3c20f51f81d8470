"""Test that max pooling on a GPU is PyTorch's."""

import pytest
import torch
from torch import Tensor, nn

from fewmore.accel import max_pool
from fewmore.accel.max_pool import FastMaxPool2d

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers warn of things that are not ours
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each call of the kernels."""
    made: list[bool] = []
    apply = max_pool._MaxPool.apply

    def counted(x: Tensor) -> Tensor:
        made.append(True)
        return apply(x)

    monkeypatch.setattr(max_pool._MaxPool, "apply", counted)
    return made


def run(pool: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pooled map, and the gradient of the input where that of the output varies."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = pool(x)
    generator = torch.Generator().manual_seed(1)
    out.backward(torch.randn(out.shape, generator=generator).to(out))
    assert x.grad is not None
    return out.detach(), x.grad


def make_map(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Make a map behind a ReLU: many windows have several maxima, all zero."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu().round(decimals=1)
    return x.cuda().to(dtype).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(3, 16, 7, 5), (1, 64, 1, 1), (5, 48, 13, 12), (33, 64, 112, 112)], ids=str
)
def test_pooling_is_pytorchs(calls: list[bool], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = make_map(shape, dtype)
    ours, grad = run(FastMaxPool2d(3, 2, 1), x)
    expected, expected_grad = run(nn.MaxPool2d(3, 2, 1), x)
    assert torch.equal(ours, expected)
    # A sum of at most four numbers, rounded once.
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(grad, expected_grad, rtol=tolerance, atol=tolerance)
    assert calls == [True]


@pytest.mark.parametrize(
    ("pool", "channels", "memory_format"),
    [
        (FastMaxPool2d(2, 2), 16, torch.channels_last),
        (FastMaxPool2d(3, 2, 1, ceil_mode=True), 16, torch.channels_last),
        (FastMaxPool2d(3, 2, 1), 24, torch.channels_last),
        (FastMaxPool2d(3, 2, 1), 16, torch.contiguous_format),
    ],
    ids=["other window", "other rounding", "other width", "other layout"],
)
def test_what_the_kernels_cannot_do_is_left_to_pytorch(
    calls: list[bool], pool: FastMaxPool2d, channels: int, memory_format: torch.memory_format
) -> None:
    x = make_map((2, channels, 8, 6), torch.float32).contiguous(memory_format=memory_format)
    plain = nn.MaxPool2d(pool.kernel_size, pool.stride, pool.padding, ceil_mode=pool.ceil_mode)
    for found, expected in zip(run(pool, x), run(plain, x), strict=True):
        assert torch.equal(found, expected)
    assert calls == []
