"""Run, measure and compare methods of few-shot class-incremental learning.

May import classifier, methods, training, nn and data; not the service or the command line.
Start at protocol.py (who sees which images, and when), then runner.py (experiments to run folders).
"""
