"""Find methods by name.

A method of the library is a row of `METHODS`; any other runs as `path/to/file.py:ClassName`. The
table is importable without PyTorch: a method's class and its settings are loaded when needed.
"""

import hashlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from fewmore.errors import MethodError, MissingData, UnknownName

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

    def load(self) -> "type[Method]":
        """Import the method's class."""
        module, name = self.target.split(":")
        cls: type[Method] = getattr(importlib.import_module(module), name)
        return cls

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
        "joint",
        "The reference: trained anew on every image seen so far",
        "–",
        "fewmore.methods.joint:Joint",
        memory="every image",
        ordered=True,
    ),
)


def find(name: str) -> MethodInfo:
    """Return a method by its name in the table, or a user's as `path/to/file.py:ClassName`."""
    if name in METHODS:
        return METHODS[name]
    path, colon, cls = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UnknownName("method", name, [*METHODS, "path/to/file.py:ClassName"])
    return _from_file(Path(path), cls)


def _from_file(path: Path, name: str) -> MethodInfo:
    """Describe a user's class, once it is known to be a complete method."""
    from fewmore.methods.base import Method

    module = _load_module(path, name)
    cls = getattr(module, name, None)
    if cls is None:
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise UnknownName(f"class in {path}", name, classes)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise MethodError(
            f"{name} in {path} is not a Method: derive it from fewmore.methods.base.Method"
        )
    if cls.__abstractmethods__:
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise MethodError(f"{name} in {path} does not implement {missing}")
    _check_config(cls, path)
    title = ((cls.__doc__ or "").strip() or name).splitlines()[0]
    return MethodInfo(
        name.lower(), title, str(path), f"{module.__name__}:{name}", memory=cls.keeps or "none"
    )


_LOADING = threading.Lock()


def _load_module(path: Path, name: str) -> ModuleType:
    """Import a user's file, once for each content: later calls must give the same classes."""
    if not path.exists():
        raise MissingData(
            f"there is no file {path}: give the path of the Python file that holds {name}"
        )
    digest = hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:8]
    module_name = f"fewmore_own_{path.stem}_{digest}"
    with _LOADING:
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise MethodError(f"{path} cannot be loaded as a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses look their module up while it is loaded
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise MethodError(
                f"{path} fails when it is loaded: {type(error).__name__}: {error}"
            ) from error
        return module


def _check_config(cls: "type[Method]", path: Path) -> None:
    """Refuse settings that `--set` could not reach."""
    from fewmore.methods.base import MethodConfig, Recipe

    config = cls.config_type
    if not (
        isinstance(config, type)
        and issubclass(config, MethodConfig)
        and "__dataclass_fields__" in vars(config)
    ):
        raise MethodError(
            f"config_type of {cls.__name__} in {path} must be a frozen dataclass that derives "
            "from fewmore.methods.base.MethodConfig"
        )
    taken = {field.name for field in fields(config)} & {field.name for field in fields(Recipe)}
    if taken:
        raise MethodError(
            f"settings of {cls.__name__} in {path} must not be called {', '.join(sorted(taken))}: "
            "every recipe has settings of that name"
        )
