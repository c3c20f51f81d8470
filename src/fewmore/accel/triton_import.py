"""Import Triton, which compiles the kernels; where it is missing, `triton` is None."""

from typing import TYPE_CHECKING

try:
    import triton
    import triton.language as tl
except ImportError:
    if not TYPE_CHECKING:
        triton = tl = None

__all__ = ["MOST_NUMBERS", "tl", "triton"]

MOST_NUMBERS = 2**31  # of a map, whose places are 32 bits in the kernels
