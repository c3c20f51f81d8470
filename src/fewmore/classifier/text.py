"""Format names and counts for messages."""

from collections.abc import Sequence

NONE_OF_THESE = "none of these"  # what an unknown image is called


def join_names(names: Sequence[str], limit: int = 5) -> str:
    """Join the first few names, and say how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def count_noun(number: int, noun: str) -> str:
    """Format a number with its noun in singular or plural."""
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural}"
