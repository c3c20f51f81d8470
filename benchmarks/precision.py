"""Measure how far bfloat16 and the GPU fast path change what stage 2 learns, beside float32.

    python benchmarks/precision.py cub200 --data-root DATA --device cuda [--set pretrain.epochs=1]

Stage 2 of CEC starts from the same stage 1 in each arm and trains on the same episodes without
augmentation. A row compares the movement of the weights with that in float32: the cosine between
the two, and their lengths. Other episodes in float32 show how much two honest runs differ. A CPU
has no fast path.
"""

from pathlib import Path

import torch
from common import Row, make_parser, print_row, record
from torch import Tensor, nn

from fewmore.data.benchmarks import Task, find
from fewmore.methods.cec import CEC
from fewmore.nn.adapter import Adapter
from fewmore.nn.weights import set_tensors
from fewmore.random import derive_seed
from fewmore.research.recipes import recipe
from fewmore.research.runner import RunOptions, load_task
from fewmore.training.pseudo_incremental import pseudo_incremental
from fewmore.training.runtime import Runtime
from fewmore.training.stage1_cache import make_folder

# What is compared, with precision, fast path and the seed of the episodes; the first is the
# reference.
ARMS: dict[str, tuple[str, bool, int]] = {
    "float32": ("fp32", False, 0),
    "float32, other episodes": ("fp32", False, 1),
    "bfloat16": ("bf16", False, 0),
    "bfloat16, fast path": ("bf16", True, 0),
}


def movement(task: Task, method: CEC, start: dict[str, Tensor], arm: str) -> dict[str, Tensor]:
    """Return how stage 2 moves the weights of encoder and adapter."""
    precision, accel, seed = ARMS[arm]
    device = method.runtime.device
    backbone = method.network.backbone
    set_tensors(backbone, start)
    generator = torch.Generator().manual_seed(derive_seed(method.seed, "adapter"))
    adapter = Adapter(backbone.dim, method.config.adapter, generator).to(device)
    modules: dict[str, nn.Module] = {"encoder": backbone, "adapter": adapter}
    before = {name: _weights(module) for name, module in modules.items()}
    base = task.split.sessions[0].select_from(task.train).compact().to(device)
    runtime = Runtime(device, precision, accel=accel)
    transform, config = method.recipe.transform, method.config.pseudo
    pseudo_incremental(backbone, adapter, base, transform, config, runtime, seed)
    return {name: _weights(module) - before[name] for name, module in modules.items()}


def _weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in module.parameters()])


def compare(moved: Tensor, reference: Tensor) -> Row:
    """Return cosine and relative length of a movement."""
    return {
        "cosine": float(torch.cosine_similarity(moved.double(), reference.double(), dim=0)),
        "length": float(moved.norm() / reference.norm()),
    }


def main() -> None:
    """Measure all arms and record them."""
    parser = make_parser(__doc__)
    parser.add_argument("benchmark")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--quick", action="store_true", help="try the script, with recipe quick")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    task = load_task(args.benchmark, RunOptions(args.device), args.data_root)
    settings = ["pseudo.augmented_rounds=0", "pseudo.milestones=", *args.settings]
    settings.append(f"pseudo.episodes={args.episodes}")
    name = "quick" if args.quick else "official"
    chosen = recipe(name, find(args.benchmark), "cec", settings)
    runtime = Runtime(args.device, stage1_cache=make_folder(), data_root=task.data_root)
    method = CEC(chosen, runtime, seed=0)
    base = task.split.sessions[0].select_from(task.train).compact().to(args.device)
    method.network.fit(base, "cosine", method.seed)
    start = {key: tensor.clone() for key, tensor in method.network.backbone.state_dict().items()}
    reference, *others = (arm for arm in ARMS if args.device.type == "cuda" or not ARMS[arm][1])
    expected = movement(task, method, start, reference)
    rows = []
    for arm in others:
        moved = movement(task, method, start, arm)
        for part, weights in moved.items():
            rows.append(print_row({"arm": arm, "part": part, **compare(weights, expected[part])}))
    about: Row = {"benchmark": args.benchmark, "episodes": args.episodes}
    record("precision", args.device, rows, about, args.record)


if __name__ == "__main__":
    main()
