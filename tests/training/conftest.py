"""Share a network to work with."""

import pytest
import torch

from fewmore.nn.backbones import Backbone, build


@pytest.fixture
def backbone() -> Backbone:
    """Build a backbone whose batch norms have seen a batch, so that the mode matters."""
    backbone = build("resnet8").train()
    backbone(torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    return backbone
