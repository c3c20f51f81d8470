"""Initialize networks, and read and copy their weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fewmore.errors import DataError, MissingData, first_line

CLASSIFIERS = ("fc", "classifier")  # names of the classifier in torchvision's files
IMAGENET = "the path of a file in torchvision's format, or 'imagenet' to download one"
COUNTER = "num_batches_tracked"  # of batches; files may have it where networks do not


def initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Draw convolutions by Kaiming's rule (fan out); batch norms stay the identity."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(
                part.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
            if part.groups > 1:  # the fan out is that of one group; torch counts all groups
                part.weight.data *= part.groups**0.5


def check_weight_file(path: Path, instead: str = IMAGENET) -> None:
    """Refuse a weight file that is not there, and say what to give instead."""
    if not path.exists():
        raise MissingData(f"there is no weight file {path}: give {instead}")


def load_weights(
    module: nn.Module,
    path: Path,
    classifiers: Sequence[str] = CLASSIFIERS,
    expected: str = "a state dict in torchvision's format",
) -> Tensor | None:
    """Read the weights of a network from a file; return those of its classifier, if it has one.

    These are (k, d + 1), for k classes and d features; the last column is the bias.

    Args:
        module: the network, which has no classifier.
        path: a state dict, as torch.save or safetensors writes it.
        classifiers: names of the classifier in the file.
        expected: what the file should hold, for error messages.
    """
    check_weight_file(path)
    read = _read_entries(path, expected)
    own = module.state_dict()
    dropped = tuple(f"{name}." for name in classifiers)
    entries = {
        name: entry
        for name, entry in read.items()
        if name in own or not (name.startswith(dropped) or name.endswith(COUNTER))
    }
    for name, tensor in own.items():
        if name.endswith(COUNTER):
            entries.setdefault(name, tensor)
    if problems := _differences(own, entries):
        raise DataError(f"{path} is not a weight file of this backbone: {problems}")
    set_tensors(module, entries)
    return _classifier({name: read[name] for name in read.keys() - entries.keys()})


def _classifier(dropped: Mapping[str, Tensor]) -> Tensor | None:
    """Return weight and bias of a linear layer (k, d + 1), if that is all of a classifier."""
    by_kind = {
        name.rpartition(".")[2]: entry
        for name, entry in dropped.items()
        if not name.endswith(COUNTER)
    }
    if by_kind.keys() != {"weight", "bias"} or by_kind["weight"].dim() != 2:
        return None
    weight, bias = by_kind["weight"], by_kind["bias"]
    return torch.cat([weight, bias[:, None]], 1).float()


def _read_entries(path: Path, expected: str) -> dict[str, Tensor]:
    """Return the entries of a file by name; whether all are tensors is not checked."""
    try:
        if path.suffix == ".safetensors":
            entries: object = load_file(path)
        else:
            entries = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not its own
        why = first_line(error)
        if isinstance(error, UnpicklingError):  # torch advises to read it unsafely
            why = "it is not a file of tensors alone, as torch.save writes it"
        raise DataError(
            f"{path} cannot be read as a weight file ({why}): give {expected}"
        ) from error
    if not isinstance(entries, dict):
        raise DataError(
            f"{path} holds a {type(entries).__name__}, not a table of weights: give {expected}"
        )
    return {str(name): entry for name, entry in entries.items()}


def _differences(expected: Mapping[str, Tensor], entries: Mapping[str, object]) -> str:
    """Say which tensors are missing, unknown or of another shape."""
    reshaped = []
    for name in expected.keys() & entries.keys():
        entry = entries[name]
        if not isinstance(entry, Tensor) or entry.shape != expected[name].shape:
            reshaped.append(name)
    problems = [
        ("missing", expected.keys() - entries.keys()),
        ("not of this network", entries.keys() - expected.keys()),
        ("of another shape", reshaped),
    ]
    return "; ".join(
        f"{len(names)} {what}, such as {min(names)}" for what, names in problems if names
    )


@torch.no_grad()
def set_tensors(module: nn.Module, entries: Mapping[str, Tensor]) -> None:
    """Copy a whole state into a module, in place."""
    own = module.state_dict()
    if own.keys() != entries.keys():
        some = ", ".join(sorted(own.keys() ^ entries.keys())[:3])
        raise DataError(f"these weights are another network's: {some} … differ")
    for name, tensor in own.items():
        tensor.copy_(entries[name])
