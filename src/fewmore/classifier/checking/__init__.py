"""Check photos before training, and a trained model: which images hurt, which classes need more.

May import the rest of the classifier. Start at folder.py (`check_folder`); model.py has
`check_model`, findings.py what both return.
"""

from fewmore.classifier.checking.findings import CheckResult, Finding
from fewmore.classifier.checking.folder import check_folder
from fewmore.classifier.checking.model import check_model

__all__ = ["CheckResult", "Finding", "check_folder", "check_model"]
