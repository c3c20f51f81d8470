"""Test that operations on images are PyTorch's, computed by kernels on a GPU."""

import pytest
import torch

from fewmore.accel import augmentation
from fewmore.data.operations import KINDS, apply_operations

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers warn of things that are not ours
]


@pytest.mark.parametrize("bilinear", [False, True], ids=["nearest", "bilinear"])
@pytest.mark.parametrize("side", [2, 32, 84, 224])
def test_kernels_compute_what_pytorch_does(side: int, bilinear: bool) -> None:
    random = torch.Generator().manual_seed(side)
    n = 10 * len(KINDS)
    pixels = (torch.rand(n, 3, side, side, generator=random) ** 2 * 255).to(torch.uint8)
    kinds = torch.arange(n) % len(KINDS)
    strengths = torch.rand(n, generator=random) * 6 - 2
    given = tuple(tensor.cuda() for tensor in (pixels, kinds, strengths))
    found = augmentation.apply_operations(*given, bilinear)
    expected = apply_operations(*given, bilinear)
    different = (found != expected).flatten(1).float().mean(1)
    # Rounding may take the other of two pixels on whose border a place lies, or a level less.
    moving = (kinds > 0) & (kinds <= KINDS.index("rotate"))
    assert float(different[~moving.cuda()].max()) == 0
    assert float(different.max()) < 0.01


def test_the_kernels_are_used_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    launch = augmentation.launch
    monkeypatch.setattr(augmentation, "launch", lambda *given: launched.append(1) or launch(*given))
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    kinds, strengths = torch.zeros(2, dtype=torch.int64), torch.zeros(2)
    augmentation.apply_operations(pixels, kinds, strengths)
    assert not launched
    augmentation.apply_operations(pixels.cuda(), kinds.cuda(), strengths.cuda())
    assert launched
