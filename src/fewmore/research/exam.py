"""Examine a method: run every check in a small world, and say which it passes."""

from collections.abc import Iterator
from dataclasses import dataclass

from fewmore.errors import describe
from fewmore.research.exam_checks import CHECKS, Failure, NotApplicable, NotFinite
from fewmore.research.exam_world import Case, make_case

PASSED = "passed"
FAILED = "failed"
NOT_APPLICABLE = "not applicable"
SKIPPED = "skipped"


@dataclass(frozen=True)
class Verdict:
    """Hold what a check found."""

    check: str
    meaning: str
    result: str  # passed, failed, not applicable or skipped
    reason: str = ""


def examine(case: Case) -> Iterator[Verdict]:
    """Run all checks of a method, one after the other.

    Once scores are found that are not finite, those that compare scores are skipped.
    """
    finite = True
    for check in CHECKS:
        if check.compares_scores and not finite:
            yield Verdict(check.name, check.meaning, SKIPPED, "scores are not finite")
            continue
        try:
            check.function(case)
        except NotApplicable as exempt:
            yield Verdict(check.name, check.meaning, NOT_APPLICABLE, str(exempt))
        except Exception as error:  # whatever the method raises
            finite = finite and not isinstance(error, NotFinite)
            reason = str(error) if isinstance(error, Failure) else describe(error)
            yield Verdict(check.name, check.meaning, FAILED, reason)
        else:
            yield Verdict(check.name, check.meaning, PASSED)


__all__ = ["FAILED", "NOT_APPLICABLE", "PASSED", "SKIPPED", "Verdict", "examine", "make_case"]
