"""Load, decode, split and augment labelled images.

May import `fewmore.io`, `fewmore.random` and `fewmore.errors`, and nothing else of fewmore.
Start with `images.py` (ImageSet), then `benchmarks.py` and `loading.py` (Benchmark, load_task).
"""
