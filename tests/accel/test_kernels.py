"""Test kernels without a GPU: what they compute, by an interpreter, and that they compile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fewmore.accel import augmentation, batch_norm, conv, max_pool

triton = pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="on a GPU the kernels themselves are tested; Triton's interpreter may not fit numpy",
)
def test_kernels_compute_what_layers_do() -> None:
    """Run them in a process of their own: Triton decides at import whether it interprets."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore:Conversion of an array:DeprecationWarning",  # Triton 3.2's interpreter does it
        str(Path(__file__).with_name("kernels.py")),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


H200 = ("cuda", 90, 32)  # what it is, which generation, and threads of a warp
NUMBERS = {
    *("pixels", "channels", "groups", "height", "width", "has_shortcut", "relu"),
    *("plane", "side"),
}
BYTES = {"taps", "images", "tables", "changed"}
FRACTIONS = {"eps", "momentum"}
FULL = {
    "mean",
    "variance",
    "inverse",
    "bias",
    "sums",
    "used",
    "weight_grad",
    "bias_grad",
    "parts",
    "strengths",
    "matrices",
}  # tensors in float32, others in bfloat16
SMALL = {"PIXELS": 256, "CHANNELS": 16, "GROUPS": 128}
LARGE = {"PIXELS": 128, "CHANNELS": 64, "GROUPS": 1}
LARGE_OF_FEW = {"PIXELS": 256, "CHANNELS": 32, "GROUPS": 512}
POOL = {"PIXELS": 64, "CHANNELS": 64}
KERNELS = [
    (batch_norm._sums, {**SMALL, "BACKWARD": True}, 4),
    (batch_norm._sums, {**LARGE, "GROUPS": 256, "BACKWARD": True}, 4),
    (batch_norm._sums, {**LARGE_OF_FEW, "BACKWARD": True}, 4),
    (batch_norm._apply, {**SMALL, "TRAINING": True}, 4),
    (batch_norm._apply, {**SMALL, "TRAINING": False}, 4),
    (batch_norm._apply, {**LARGE, "TRAINING": True}, 4),
    (batch_norm._apply_backward, {**SMALL, "TRAINING": True}, 4),
    (batch_norm._apply_backward, {**SMALL, "TRAINING": False}, 4),
    (batch_norm._apply_backward, {**LARGE, "TRAINING": True}, 4),
    (max_pool._pool, POOL, 4),
    (max_pool._pool_backward, POOL, 4),
    (conv._conv, {"C": 16, "PIXELS": 128, "BACKWARD": False}, 2),
    (conv._conv, {"C": 32, "PIXELS": 128, "BACKWARD": True}, 4),
    (conv._weight_grad, {"C": 32, "PIXELS": 64}, 2),
    (conv._conv_from_colors, {"C": 16, "PIXELS": 128}, 2),
    (conv._weight_grad_from_colors, {"C": 16, "PIXELS": 128}, 2),
    (augmentation._tables, {"PIXELS": 1024}, 4),
    (augmentation._apply, {"PIXELS": 1024, "BILINEAR": False}, 4),
    (augmentation._apply, {"PIXELS": 1024, "BILINEAR": True}, 4),
]


@pytest.mark.filterwarnings("ignore::UserWarning")  # the compiler speaks of its own future
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # and uses `ast` in an old way
@pytest.mark.parametrize(
    ("kernel", "constants", "warps"), KERNELS, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_kernel_compiles_for_a_gpu(
    kernel: triton.JITFunction,
    constants: dict[str, object],
    warps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in NUMBERS | FRACTIONS:
            return "i32" if name in NUMBERS else "fp32"
        if name in BYTES or name == "kinds":
            return "*u8" if name in BYTES else "*i64"
        return (
            "*fp32"
            if name in FULL or (name == "weight" and kernel.__module__ == batch_norm.__name__)
            else "*bf16"
        )

    names = kernel.arg_names
    kinds = {name: kind(name) for name in names}
    values: dict[object, object] = {(names.index(n),): value for n, value in constants.items()}
    if triton.__version__ < "3.3":  # that of PyTorch 2.6
        kinds = {name: kind for name, kind in kinds.items() if name not in constants}
        values = dict(constants)
    source = triton.compiler.ASTSource(kernel, kinds, values)
    compiled = triton.compile(
        source, triton.backends.compiler.GPUTarget(*H200), {"num_warps": warps}
    )
    assert compiled.asm["cubin"].startswith(b"\x7fELF")
