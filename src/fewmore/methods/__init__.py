"""Implement the methods of the field, one file each: class, settings (`Config`) and reference.

May import training, nn, data, io, random and errors; no method imports another. Start with base.py
(the contract), cec.py (the paper's method) and registry.py (the table that finds them by name);
features.py is the table of what stage 1 learns features by.
"""

from fewmore.methods.features import FEATURES, FeatureInfo, find_features
from fewmore.methods.registry import METHODS, MethodInfo, find

__all__ = ["FEATURES", "METHODS", "FeatureInfo", "MethodInfo", "find", "find_features"]
