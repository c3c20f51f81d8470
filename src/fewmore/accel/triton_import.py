"""Import Triton, which compiles the kernels; where it is missing, `triton` is None."""

from typing import TYPE_CHECKING

try:
    import triton
    import triton.language as tl
except ImportError:
    if not TYPE_CHECKING:
        triton = tl = None

__all__ = ["tl", "triton"]
