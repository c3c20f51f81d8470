"""Hold what training a classifier gives."""

from collections.abc import Sequence
from dataclasses import dataclass

from fewmore.classifier.calibration import Calibration
from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.fitting.base import MIN_IMAGES, BaseFeatures
from fewmore.classifier.heads import Head
from fewmore.classifier.model import Model
from fewmore.classifier.text import count_noun
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
            dim=self.backbone.dim,
            class_set=ClassSet.from_training(self.base.classes),
            calibration=self.calibration,
            variance=head.variance,
            adapter=adapter,
            adapter_config=AdapterConfig() if head.adapter is None else head.adapter.config,
            projection=None if head.projection is None else head.projection.cpu(),
            notes=(*notes, *self.notes),
            origin=origin,
        )


def uncalibrated(backbone: Backbone, base: BaseFeatures, head: Head) -> FitResult:
    """Return the result where a class has too few images to hold any out, with a note on that."""
    smallest = min(base.classes, key=lambda known: known.count)
    note = (
        f"class '{smallest.name}' has {count_noun(smallest.count, 'image')}, "
        f"fewer than {MIN_IMAGES}: nothing is held out, so confidences are not calibrated, "
        "no image is predicted as 'none of these', and there is nothing to choose an adapter by"
    )
    return FitResult(backbone, base, head, Calibration(), (*base.notes, note))
