"""Define models in plain PyTorch: backbones, prototypes, similarities and the adapter.

May import `fewmore.io`, `fewmore.random` and `fewmore.errors`, and nothing else of fewmore.
Start with `adapter.py`, which has the paper's equations, and `backbones.py`.
"""
