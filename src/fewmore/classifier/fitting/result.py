"""Hold what training a classifier gives."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fewmore.classifier.calibration import Calibration
from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.fitting.base import MIN_IMAGES, BaseFeatures
from fewmore.classifier.heads import Head
from fewmore.classifier.model import Model
from fewmore.classifier.text import count_noun, join_names
from fewmore.classifier.whitening import Whitening
from fewmore.data.augment import Transform
from fewmore.nn.adapter import AdapterConfig
from fewmore.nn.backbones import Backbone


@dataclass(frozen=True, eq=False)
class FitResult:
    """Hold a trained backbone and head, the base features and the calibration."""

    backbone: Backbone
    base: BaseFeatures
    head: Head
    calibration: Calibration
    notes: tuple[str, ...]
    whitening: Whitening | None = None

    def to_model(
        self,
        backbone: str,
        transform: Transform,
        notes: Sequence[str],
        origin: dict[str, str | int],
    ) -> Model:
        """Return the model, with all tensors on the CPU."""
        head = self.head
        adapter = None
        if head.adapter is not None:
            adapter = {key: tensor.cpu() for key, tensor in head.adapter.state_dict().items()}
        return Model(
            backbone=backbone,
            transform=transform,
            weights={key: tensor.cpu() for key, tensor in self.backbone.state_dict().items()},
            dim=head.dim,
            class_set=ClassSet.from_training(self.base.classes()),
            calibration=self.calibration,
            variance=head.variance,
            whitening=self.whitening and self.whitening.to(torch.device("cpu")),
            adapter=adapter,
            adapter_config=AdapterConfig() if head.adapter is None else head.adapter.config,
            projection=None if head.projection is None else head.projection.cpu(),
            notes=(*notes, *self.notes),
            origin=origin,
        )


def hold_out_note(base: BaseFeatures) -> tuple[str, ...]:
    """Name the classes of which no image is held out, if there are any."""
    small = [
        f"{name} ({count_noun(count, 'image')})"
        for name, count in zip(base.names, base.counts, strict=True)
        if count < MIN_IMAGES
    ]
    if not base.fold_numbers:
        return (
            f"nothing is held out, because fewer than two classes have {MIN_IMAGES} images: "
            "confidences are not calibrated, and no image is predicted as 'none of these'",
        )
    if not small:
        return ()
    return (
        f"calibrated on the other classes, because these have fewer than {MIN_IMAGES} images: "
        f"{join_names(small)}",
    )
