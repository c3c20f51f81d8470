"""What the benchmarks share: a result with its machine, command and date."""

import json
import shlex
from datetime import date
from pathlib import Path

import torch

from cecil.evaluation.results import commit, machine


def record(name: str, device: torch.device, rows: list[dict[str, object]], about: dict[str, object], folder: Path | None) -> None:
    """Print what was measured, and write it to results/bench-<name>-<machine>.json where asked for."""
    info = machine(device)
    kind = "gpu" if device.type == "cuda" else "cpu"
    found = {
        "benchmark": name,
        "command": shlex.join(["python", f"benchmarks/{name}.py", *(["--device", "cuda"] if kind == "gpu" else [])]),
        "date": date.today().isoformat(),
        "machine": f"{info['device']}, {info['cores']} cores, torch {info['torch']}",
        "commit": commit(),
        "about": {k: round(v, 4) if isinstance(v, float) else v for k, v in about.items()},
        "rows": [{k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows],
    }
    print(json.dumps(found["about"], indent=1))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"bench-{name}-{kind}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    print("run one of the other files")
