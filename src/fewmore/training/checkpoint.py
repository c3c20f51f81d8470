"""Write tensors and JSON values into one file, from which a killed run is resumed."""

import json
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fewmore.errors import CheckpointError
from fewmore.io import write_bytes
from fewmore.training.distributed import from_first, is_first

State = dict[str, Any]  # nested dicts of tensors and JSON values


def write_state(path: Path, state: State) -> None:
    """Write a state; tensors go to the file's tensors, all else to its JSON."""
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            while name in tensors:  # a key may contain a slash
                name += "/"
            # The format refuses shared memory.
            tensors[name] = value.detach().to("cpu", copy=True).contiguous()
            return {"tensor": name}
        if isinstance(value, dict):
            return {"dict": {key: plain(inner, f"{name}/{key}") for key, inner in value.items()}}
        return {"json": value}

    tree = json.dumps(plain(state, ""))
    write_bytes(path, save(tensors, metadata={"fewmore": tree}))


def read_state(path: Path) -> State:
    """Read back what `write_state` wrote."""
    if not path.exists():
        raise CheckpointError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            # "cecil" was the project's name before the first release.
            tree = json.loads(about.get("fewmore") or about["cecil"])
            tensors = {name: file.get_tensor(name).clone() for name in list(file.keys())}
        state: State = _rich(tree, tensors)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): it is damaged, or not fewmore's; "
            "delete it to start anew"
        ) from error
    return state


def _rich(node: Any, tensors: dict[str, Tensor]) -> Any:
    """Rebuild a value from the file's JSON and tensors."""
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "dict" in node:
        return {key: _rich(inner, tensors) for key, inner in node["dict"].items()}
    return node["json"]


def to_cpu(state: State) -> State:
    """Return a state with all its tensors on the CPU."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return to_cpu(value)
        return value.detach().cpu() if isinstance(value, Tensor) else value

    return {key: moved(value) for key, value in state.items()}


class Checkpoint:
    """Keep the stages that a run has reached in one file.

    A stage saves under its name as often as it likes; the file is written at most every few
    seconds, and always at a stage's end. Once a session is learnt its stages are dropped, and what
    the method knows stands in their place. Of several processes the first reads and writes it.
    """

    def __init__(self, path: Path, every: float = 20.0) -> None:
        self.path = path
        self.every = every
        for left_over in path.parent.glob(f".{path.name}.*"):  # by a kill in the middle of a write
            left_over.unlink()
        self.stages: dict[str, State] = from_first(
            lambda: read_state(path) if path.exists() else {}
        )
        self._written = time.monotonic()

    def load(self, stage: str) -> State | None:
        """Return what was saved last under a stage's name."""
        return self.stages.get(stage)

    def due(self) -> bool:
        """Say whether it is time to write again."""
        return time.monotonic() - self._written >= self.every

    def note(self, stage: str, state: State) -> None:
        """Save a stage that is written with the next one."""
        self.stages[stage] = state

    def save(self, stage: str, state: State) -> None:
        """Save a stage and write the file."""
        self.note(stage, state)
        if is_first():
            write_state(self.path, self.stages)
        self._written = time.monotonic()

    def replace(self, stage: str, state: State) -> None:
        """Save a stage and drop all others."""
        self.stages = {}
        self.save(stage, state)
