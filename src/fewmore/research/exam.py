"""Examine a method: run every check in a small world, and say which it passes."""

import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from fewmore.research.exam_checks import CHECKS, Check, Failure, NotApplicable
from fewmore.research.exam_world import Case, make_case

PASSED = "passed"
FAILED = "failed"
NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Verdict:
    """Hold what a check found."""

    check: str
    meaning: str
    result: str  # passed, failed or not applicable
    reason: str = ""


def examine(case: Case) -> Iterator[Verdict]:
    """Run all checks of a method, one after the other."""
    for check in CHECKS:
        result, reason = _judge(check, case)
        yield Verdict(check.name, check.meaning, result, reason)


def _judge(check: Check, case: Case) -> tuple[str, str]:
    """Run one check; whatever the method raises makes it fail."""
    try:
        check.function(case)
    except Failure as failure:
        return FAILED, str(failure)
    except NotApplicable as reason:
        return NOT_APPLICABLE, str(reason)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return FAILED, f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
    return PASSED, ""


__all__ = ["FAILED", "NOT_APPLICABLE", "PASSED", "Verdict", "examine", "make_case"]
