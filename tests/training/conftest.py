"""A network to work with."""

import pytest
import torch

from fewmore.nn.backbones import Backbone, build


@pytest.fixture
def backbone() -> Backbone:
    """With statistics of its own, so that the mode makes a difference."""
    made = build("resnet8")
    made.train()
    made(torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    return made
