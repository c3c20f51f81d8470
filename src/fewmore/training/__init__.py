"""Train networks: the loop, checkpoints, the stage-1 cache, and one file for each stage.

May import accel (through fast_path.py alone), nn, data, io, random and errors.
Start with loop.py, then pseudo_incremental.py, which is Algorithm 1 of the paper.
"""
