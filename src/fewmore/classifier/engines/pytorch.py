"""Run a backbone by PyTorch, on any device."""

import torch
from torch import Tensor, nn

from fewmore.data.augment import normalize
from fewmore.data.transform import Transform
from fewmore.nn.backbones import Backbone


class TorchEngine(nn.Module):
    """Normalize images and run the backbone on them. A call uses all of PyTorch's threads."""

    is_concurrent = False

    def __init__(self, backbone: Backbone, transform: Transform) -> None:
        super().__init__()
        self.name = f"torch {torch.__version__}"
        self.backbone = backbone
        self.transform = transform

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images (n, 3, s, s) uint8: (n, d) float32."""
        features: Tensor = self.backbone(normalize(images, self.transform)).float()
        return features
