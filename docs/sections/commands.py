"""Write recorded commands: runs that differ by their seed alone are one command."""

import re
from collections.abc import Iterable, Sequence

from fewmore.research.results import RunResult
from sections.markdown import paragraph

SEED = re.compile(r"--seed[ =](\d+)")
SEEDS = re.compile(r"--seeds[ =](\d+)")


def folded(command: str) -> list[str]:
    """Return the commands of a result as code; those that differ by one seed are one.

    "fewmore run a --seed 0; fewmore run a --seed 1" is "`fewmore run a --seed N`, N = 0, 1".
    """
    groups: dict[str, list[str]] = {}
    for part in command.split("; "):
        seeds = SEED.findall(part)
        template = SEED.sub("--seed N", part) if len(seeds) == 1 else part
        groups.setdefault(template, []).extend(seeds if len(seeds) == 1 else [])
    return [
        f"`{template}`, N = {', '.join(seeds)}"
        if len(seeds) > 1
        else f"`{template.replace('--seed N', f'--seed {seeds[0]}') if seeds else template}`"
        for template, seeds in groups.items()
    ]


def joined(commands: Iterable[str]) -> str:
    """Return several recorded commands in one line, each once."""
    return "; ".join(dict.fromkeys(part for command in commands for part in folded(command)))


def numbered(commands: Sequence[str]) -> tuple[list[str], str]:
    """Return the numbers of each recorded command, and the list that these refer to."""
    known = list(dict.fromkeys(part for command in commands for part in folded(command)))
    cells = [
        ", ".join(str(known.index(part) + 1) for part in folded(command)) for command in commands
    ]
    items = [
        paragraph(part, f"{number}. ", " " * (len(str(number)) + 2))
        for number, part in enumerate(known, 1)
    ]
    return cells, "\n".join(items)


def unnamed_seeds(result: RunResult) -> list[int]:
    """Return the seeds of a result that its command does not name."""
    named: set[int] = set()
    for part in result.command.split("; "):
        one, count = SEED.findall(part), SEEDS.findall(part)
        named |= {int(seed) for seed in one} if one else set(range(int(count[0]) if count else 1))
    return sorted(set(result.seeds) - named)
