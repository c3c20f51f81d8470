"""Speed up training on an NVIDIA GPU: fused layers, side streams, CUDA graphs, behind `accelerate`.

May import nn, data and what lies below them; only training/fast_path.py imports this package.
Start with engine.py. With the folder deleted, everything else works as plain PyTorch.
"""

from fewmore.accel.engine import PARTS, accelerate
from fewmore.accel.sharing import share_gpu, yield_gpu
from fewmore.accel.warm_up import finish as finish_warm_up
from fewmore.accel.warm_up import start_warm_up

__all__ = ["PARTS", "accelerate", "finish_warm_up", "share_gpu", "start_warm_up", "yield_gpu"]
