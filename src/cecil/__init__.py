"""cecil: teach an image classifier new classes from a handful of pictures, without forgetting the old ones."""

__version__ = "0.1.0"
