"""Read and write model files: one `NAME.fewmore` holds a classifier bit for bit.

May import what `fewmore.classifier` may. Start with format.py, then writer.py and reader.py.
"""

from fewmore.classifier.model_file.lock import locked
from fewmore.classifier.model_file.reader import check_exists, read
from fewmore.classifier.model_file.writer import write

__all__ = ["check_exists", "locked", "read", "write"]
