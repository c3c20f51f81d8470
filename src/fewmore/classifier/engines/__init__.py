"""Compute features of images by PyTorch, ONNX Runtime or OpenVINO; one file an engine.

May import what `fewmore.classifier` may, and the packages of an engine when it is built. Start
with base.py; graph.py and int8.py turn a backbone into the ONNX graphs that the others run.
"""

from fewmore.classifier.engines.base import AUTO, Engine, build, check_name

__all__ = ["AUTO", "Engine", "build", "check_name"]
