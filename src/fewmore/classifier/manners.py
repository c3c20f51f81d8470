"""Give a classifier the manners of scikit-learn without importing it, which takes seconds."""

import inspect
from typing import Any, TypeVar

from fewmore.errors import UnknownName

T = TypeVar("T", bound="SklearnManners")


class SklearnManners:
    """Answer what scikit-learn asks an estimator, such as `clone`, `Pipeline` and `GridSearchCV`.

    The constructor must store each argument under its own name, and do nothing else with it.
    """

    _estimator_type = "classifier"  # asked for by scikit-learn before 1.6

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor; none of them has arguments of its own."""
        return {name: getattr(self, name) for name in _parameters(type(self))}

    def set_params(self: T, **params: Any) -> T:
        """Change arguments of the constructor; they count from the next `fit` on."""
        for name in params:
            if name not in _parameters(type(self)):
                raise UnknownName("parameter", name, _parameters(type(self)))
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = _parameters(type(self))
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value is not defaults[name].default and value != defaults[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Describe a classifier of images, which come as paths or as arrays."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True, string=True),
            no_validation=True,
        )


def _parameters(estimator: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(estimator).parameters)
