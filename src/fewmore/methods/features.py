"""Find feature recipes by name: what stage 1 learns features by, whatever classifies them.

A feature recipe is a `PretrainConfig` (training/pretrain.py): the settings of stage 1, its loss and
its transform, for each benchmark. Every method can learn its features by any of them; without a
name it has its own. The table is importable without PyTorch.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fewmore import plugins
from fewmore.errors import MethodError, UnknownName
from fewmore.methods import user_code

if TYPE_CHECKING:
    from fewmore.training.pretrain import PretrainConfig

PLAIN = "cec"  # the name of the plain stage 1
PRETRAINED = "pretrained"  # the name of the one that trains nothing


@dataclass(frozen=True)
class FeatureInfo:
    """Describe a feature recipe: a row of the table."""

    name: str
    title: str
    paper: str
    target: str  # module:Class
    source: Mapping[str, str] | None = None  # of a user's class: its file and the file's hash

    def load(self) -> "type[PretrainConfig]":
        """Import the class of its settings."""
        module, name = self.target.split(":")
        cls: type[PretrainConfig] = getattr(importlib.import_module(module), name)
        return cls


FEATURES = {
    info.name: info
    for info in (
        FeatureInfo(
            PLAIN,
            "cross entropy of cropped and mirrored images, 100 epochs",
            "Zhang et al., CVPR 2021",
            "fewmore.training.pretrain:PretrainConfig",
        ),
        FeatureInfo(
            PRETRAINED,
            "the backbone's pretrained weights as they are: nothing is trained",
            "–",
            "fewmore.methods.pretrained:Features",
        ),
        FeatureInfo(
            "teen",
            "the same for 600 epochs, with AutoAugment and Cutout",
            "Wang et al., NeurIPS 2023",
            "fewmore.methods.teen:Features",
        ),
        FeatureInfo(
            "closer",
            "three strong views, contrasted, and classes drawn together",
            "Oh et al., ECCV 2024",
            "fewmore.methods.closer:Features",
        ),
        FeatureInfo(
            "fact",
            "600 epochs with AutoAugment, and virtual prototypes for classes to come",
            "Zhou et al., CVPR 2022",
            "fewmore.methods.fact:Features",
        ),
        FeatureInfo(
            "s3c",
            "four rotations as classes of their own, and random prototypes",
            "Kalla, Biswas, ECCV 2022",
            "fewmore.methods.s3c:Features",
        ),
        FeatureInfo(
            "savc",
            "rotations as classes, crops contrasted with a momentum queue by labels",
            "Song et al., CVPR 2023",
            "fewmore.methods.savc:Features",
        ),
        FeatureInfo(
            "motic",
            "CLOSER's views, rotations as classes, classes drawn together over a momentum queue",
            "He et al., 2025",
            "fewmore.methods.motic:Features",
        ),
        FeatureInfo(
            "evolve",
            "two strong views, contrasted, 0° and 180° as classes, classes drawn together",
            "fewmore",
            "fewmore.methods.evolve:Features",
        ),
    )
}


def find_features(name: str) -> FeatureInfo:
    """Return a feature recipe by its name, or a user's class by `path/to/file.py:ClassName`."""
    if name in FEATURES:
        return FEATURES[name]
    where, colon, cls = name.rpartition(":")
    if colon and (where.endswith(".py") or plugins.is_module(where, MethodError)):
        return _describe(name, where, cls)
    if name.endswith(".py"):
        from fewmore.training.pretrain import PretrainConfig

        user_code.refuse_file(name, PretrainConfig, "feature recipe")
    known = [*FEATURES, "path/to/file.py:ClassName", "package.module:ClassName"]
    raise UnknownName("feature recipe", name, known)


def _describe(name: str, where: str, class_name: str) -> FeatureInfo:
    """Describe a user's class, once it is known to be a feature recipe."""
    from fewmore.methods.base import Method
    from fewmore.training.pretrain import PretrainConfig

    module = plugins.load(where, class_name, MethodError)
    cls = user_code.member_of(module, class_name, where)
    if isinstance(cls, type) and issubclass(cls, Method):
        raise MethodError(
            f"{class_name} in {where} is a method, not a feature recipe: name it by --method {name}"
        )
    if not user_code.is_config(cls, PretrainConfig):
        raise MethodError(
            f"{class_name} in {where} is not a feature recipe: make it a frozen dataclass that "
            "derives from fewmore.training.pretrain.PretrainConfig"
        )
    title = user_code.title_of(cls, class_name)
    target = f"{module.__name__}:{class_name}"
    return FeatureInfo(name, title, where, target, plugins.source_of(module))
