"""Find methods by name.

A method of the library is a row of `METHODS`; any other is found by user_code.py. The table is
importable without PyTorch: a method's class and its settings are loaded when needed.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fewmore import plugins
from fewmore.errors import MethodError, UnknownName
from fewmore.methods import user_code
from fewmore.methods.features import FEATURES, PLAIN

if TYPE_CHECKING:
    from fewmore.data.benchmarks import Benchmark
    from fewmore.methods.base import Method, MethodConfig, Recipe
    from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class MethodInfo:
    """Describe a method: a row of the table."""

    name: str
    title: str
    paper: str
    target: str  # module:Class
    # Settings in which it differs from other methods of the same class; they hold in every recipe.
    overrides: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    memory: str = "none"  # of old images
    ordered: bool = False  # whether the order of the classes matters for what is learnt
    features: str = PLAIN  # the feature recipe of its stage 1, unless another is named
    # Of a user's class: its file, the file's hash, and how it was named.
    source: Mapping[str, str] | None = None

    def load(self) -> "type[Method]":
        """Import the method's class."""
        module, name = self.target.split(":")
        cls: type[Method] = getattr(importlib.import_module(module), name)
        return cls

    @property
    def module(self) -> str:
        """Return the module that describes it: that of its features if they bear its name."""
        info = FEATURES.get(self.name)
        return (info.target if info and self.name != PLAIN else self.target).partition(":")[0]

    def config(self, recipe: str, benchmark: "Benchmark") -> "MethodConfig":
        """Return the method's own settings under a recipe."""
        from fewmore.methods.recipe import override

        return override(self.load().config_type.for_recipe(recipe, benchmark), self.overrides)

    def build(self, recipe: "Recipe", runtime: "Runtime", seed: int) -> "Method":
        """Construct the method."""
        return self.load()(recipe, runtime, seed)


_CEC = "Zhang et al., CVPR 2021"
_TOPIC = "Tao et al., CVPR 2020"
_ICARL = "Rebuffi et al., CVPR 2017"
_EEIL = "Castro et al., ECCV 2018"
_LUCIR = "Hou et al., CVPR 2019"
_EMD = "Zhang et al., CVPR 2020"
_LDA = "Hayes, Kanan, CVPRW 2020"
_TEEN = "Wang et al., NeurIPS 2023"
_CLOSER = "Oh et al., ECCV 2024"
_FACT = "Zhou et al., CVPR 2022"
_S3C = "Kalla, Biswas, ECCV 2022"
_SAVC = "Song et al., CVPR 2023"
_MOTIC = "He et al., 2025"
_FINETUNE = "fewmore.methods.finetune:Finetune"
_DECOUPLED = "fewmore.methods.decoupled:Decoupled"
_REPLAY: Any = MappingProxyType({"memory": "a few images a class", "ordered": True})


def _table(*rows: MethodInfo) -> dict[str, MethodInfo]:
    return {row.name: row for row in rows}


METHODS = _table(
    MethodInfo(
        "finetune",
        "Ft-CNN: the whole network fine-tuned on the new images",
        _TOPIC,
        _FINETUNE,
        ordered=True,
    ),
    MethodInfo(
        "linear",
        "Linear classifier, the whole network trained on",
        _CEC,
        _FINETUNE,
        {"session": {"lr": 0.1}},
        ordered=True,
    ),
    MethodInfo(
        "cosine",
        "Cosine classifier, the whole network trained on",
        _CEC,
        _FINETUNE,
        {"similarity": "cosine", "session": {"lr": 0.1}},
        ordered=True,
    ),
    MethodInfo(
        "icarl",
        "iCaRL: nearest mean of exemplars, features held by distillation",
        _ICARL,
        "fewmore.methods.icarl:ICaRL",
        **_REPLAY,
    ),
    MethodInfo(
        "eeil",
        "EEIL: distillation per head, then balanced fine-tuning",
        _EEIL,
        "fewmore.methods.eeil:EEIL",
        **_REPLAY,
    ),
    MethodInfo(
        "lucir",
        "LUCIR (NCM): cosines, features that keep their directions",
        _LUCIR,
        "fewmore.methods.lucir:LUCIR",
        **_REPLAY,
    ),
    MethodInfo(
        "topic",
        "TOPIC: features held in their places by a neural gas",
        _TOPIC,
        "fewmore.methods.topic:TOPIC",
        memory="one image a node",
        ordered=True,
    ),
    MethodInfo(
        "decoupled-linear",
        "Frozen features, linear classifier",
        _CEC,
        _DECOUPLED,
        {"similarity": "linear"},
    ),
    MethodInfo(
        "decoupled-cosine",
        "Frozen features, cosine classifier",
        _CEC,
        _DECOUPLED,
        {"similarity": "cosine"},
    ),
    MethodInfo(
        "decoupled-l2", "Frozen features, squared distance", _CEC, _DECOUPLED, {"similarity": "l2"}
    ),
    MethodInfo(
        "decoupled-deepemd",
        "Frozen feature maps, earth mover's distance",
        _EMD,
        "fewmore.methods.deepemd:DeepEMD",
    ),
    MethodInfo(
        "cec",
        "CEC: class means adapted by a graph, learnt pseudo-incrementally",
        _CEC,
        "fewmore.methods.cec:CEC",
    ),
    MethodInfo(
        "cec-meta",
        "CEC, its graph learnt by plain meta-learning",
        _CEC,
        "fewmore.methods.cec:CEC",
        {"pseudo": {"angles": ()}},
    ),
    MethodInfo(
        "lda",
        "Frozen features, linear discriminants with the base classes' covariance",
        _LDA,
        "fewmore.methods.discriminant:Discriminant",
    ),
    MethodInfo(
        "teen",
        "TEEN: means of new classes moved towards similar base classes",
        _TEEN,
        "fewmore.methods.teen:TEEN",
        features="teen",
    ),
    MethodInfo(
        "closer",
        "CLOSER: class means on features whose classes lie close",
        _CLOSER,
        _DECOUPLED,
        features="closer",
    ),
    MethodInfo(
        "fact",
        "FACT: class means, with room reserved by virtual prototypes",
        _FACT,
        "fewmore.methods.fact:FACT",
        features="fact",
    ),
    MethodInfo(
        "s3c",
        "S3C: random prototypes of rotated classes, trained on in every session",
        _S3C,
        "fewmore.methods.s3c:S3C",
        ordered=True,
        features="s3c",
    ),
    MethodInfo(
        "savc",
        "SAVC: class means on features of imagined classes, contrasted in crops",
        _SAVC,
        _DECOUPLED,
        features="savc",
    ),
    MethodInfo(
        "motic",
        "MoTiC: class means on features drawn together over a momentum queue",
        _MOTIC,
        _DECOUPLED,
        features="motic",
    ),
    MethodInfo(
        "evolve",
        "fewmore's own: whitened class means on features of views, rotations and close classes",
        "fewmore",
        "fewmore.methods.evolve:Evolve",
        features="evolve",
    ),
    MethodInfo(
        "joint",
        "The reference: trained anew on every image seen so far",
        "–",
        "fewmore.methods.joint:Joint",
        memory="every image",
        ordered=True,
    ),
)


# Those that classify any features: by class means, as they are or adapted, and by covariances.
CLASSIFIERS = ("decoupled-cosine", "lda", "teen", "cec", "evolve")


def classifier_of(method: str, benchmark: "Benchmark") -> str:
    """Return the first method that classifies alike: `closer` is `decoupled-cosine`."""
    own = METHODS[method]
    settings = own.config("official", benchmark)
    return next(
        name
        for name, info in METHODS.items()
        if info.target == own.target and info.config("official", benchmark) == settings
    )


def find(name: str) -> MethodInfo:
    """Return a method by its name.

    That is a name in the table or of an installed package's method, or a user's class as
    `path/to/file.py:ClassName` or `package.module:ClassName`.
    """
    if name in METHODS:
        return METHODS[name]
    installed = plugins.installed(user_code.GROUP)
    if name in installed:
        entry = installed[name]
        plugins.check(entry, MethodError)
        return _describe(entry.module, entry.attr, name, entry.value)
    where, colon, cls = name.rpartition(":")
    if colon and (where.endswith(".py") or plugins.is_module(where, MethodError)):
        return _describe(where, cls, None, where)
    if name.endswith(".py"):
        from fewmore.methods.base import Method

        user_code.refuse_file(name, Method, "method")
    known = [*METHODS, *installed, "path/to/file.py:ClassName", "package.module:ClassName"]
    raise UnknownName("method", name, known)


def _describe(where: str, class_name: str, name: str | None, paper: str) -> MethodInfo:
    """Describe a user's class, once it is known to be a complete method."""
    module = plugins.load(where, class_name, MethodError)
    cls = user_code.find_class(module, class_name, where)
    return MethodInfo(
        name or user_code.display_name(cls, where, METHODS),
        user_code.title_of(cls, class_name),
        paper,
        f"{module.__name__}:{class_name}",
        memory=cls.keeps or "none",
        ordered=cls.ordered,
        features=cls.features,
        source={**plugins.source_of(module), "named": name or f"{where}:{class_name}"},
    )
