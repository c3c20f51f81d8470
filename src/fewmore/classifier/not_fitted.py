"""Define the error of a use before `fit` that scikit-learn's own code understands too.

Imported where it is raised: scikit-learn takes seconds to import.
"""

from sklearn.exceptions import NotFittedError as SklearnError

from fewmore import errors


class NotFittedError(errors.NotFittedError, SklearnError):  # type: ignore[misc]
    """Report a use before `fit`."""
