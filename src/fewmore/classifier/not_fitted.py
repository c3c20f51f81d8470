"""Define the error of a use before `fit` that scikit-learn's own code understands too.

Imported where it is raised: scikit-learn takes seconds to import.
"""

import sklearn.exceptions

import fewmore.errors


class NotFittedError(fewmore.errors.NotFittedError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """Report a use before `fit`."""
