"""Keep the backbone's pretrained weights as they are: stage 1 trains nothing.

A network that was trained on ImageNet tells many classes apart before it has seen an image of a
benchmark. What a method reaches beyond class means on these features is what its training is worth.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from fewmore.training.pretrain import PretrainConfig


@dataclass(frozen=True)
class Features(PretrainConfig):
    """Hold the settings of a stage 1 that trains nothing: there are none to choose."""

    fewest_epochs: ClassVar[int] = 0
    per_benchmark: ClassVar = {}
    per_recipe: ClassVar = {"quick": {"epochs": 0, "warm_up": 0}}
    epochs: int = 0
    milestones: tuple[int, ...] = ()

    @property
    def unread(self) -> Mapping[str, str]:
        """Return all settings: without training they have no effect."""
        return {field.name: "features=pretrained" for field in fields(self)}
