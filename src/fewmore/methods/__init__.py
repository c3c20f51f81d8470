"""The table of methods. What is not in it runs as `path/to/file.py:ClassName`."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fewmore.errors import MethodError, MissingData, UnknownName

if TYPE_CHECKING:
    from fewmore.methods.base import Method, Recipe
    from fewmore.training.loop import Runtime


@dataclass(frozen=True)
class MethodInfo:
    """One row of the table of methods."""

    name: str
    title: str
    paper: str
    target: str  # module:Class
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    memory: str = "none"  # of old images
    ordered: bool = False  # whether the order of the classes matters for what is learnt

    def build(self, recipe: "Recipe", runtime: "Runtime", seed: int) -> "Method":
        module, name = self.target.split(":")
        method: Method = getattr(importlib.import_module(module), name)(
            recipe, runtime, seed, **self.options
        )
        return method


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
        "linear", "Linear classifier, the whole network trained on", _CEC, _FINETUNE, ordered=True
    ),
    MethodInfo(
        "cosine",
        "Cosine classifier, the whole network trained on",
        _CEC,
        _FINETUNE,
        {"similarity": "cosine"},
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
        "cec-meta", "CEC, its graph learnt by plain meta-learning", _CEC, "fewmore.methods.cec:CEC"
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
    """A method by its name in the table, or a class of one's own as `path/to/file.py:ClassName`."""
    if name in METHODS:
        return METHODS[name]
    path, colon, cls = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UnknownName("method", name, [*METHODS, "path/to/file.py:ClassName"])
    return _own(Path(path), cls)


def _own(path: Path, cls: str) -> MethodInfo:
    from fewmore.methods.base import Method

    if not path.exists():
        raise MissingData(
            f"there is no file {path}: give the path of the Python file that holds {cls}"
        )
    module_name = f"fewmore_own_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"  # one name a file
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise MethodError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise MethodError(
            f"{path} fails when it is loaded: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, cls, None)
    if found is None:
        raise UnknownName(
            f"class in {path}",
            cls,
            [name for name, value in vars(module).items() if isinstance(value, type)],
        )
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise MethodError(
            f"{cls} in {path} is not a Method: derive it from fewmore.methods.base.Method"
        )
    if found.__abstractmethods__:
        raise MethodError(
            f"{cls} in {path} does not implement {', '.join(sorted(found.__abstractmethods__))}"
        )
    title = ((found.__doc__ or "").strip() or cls).splitlines()[0]
    return MethodInfo(
        cls.lower(), title, str(path), f"{module_name}:{cls}", memory=found.keeps or "none"
    )
