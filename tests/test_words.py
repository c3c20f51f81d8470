"""Check the form of the sources: line and function length, docstrings, vocabulary."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TEXT_SUFFIXES = {".py", ".md", ".html", ".css", ".js", ".json", ".txt", ".toml"}
MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 80

# A docstring begins with a verb, so it cannot begin with one of these.
ARTICLES_AND_DETERMINERS = """
    the a an this that these those such same other another any some each every all both no none
    more most less fewer few many much several enough one two three first last next
"""
PRONOUNS = "i we you he she it they its our your their his her my there here"
QUESTION_WORDS = "what which who whom whose when where why how whether"
PREPOSITIONS_AND_CONJUNCTIONS = """
    of as to in on at by for from with without within between behind before after above below under
    over beside besides beyond through during since until against among along across into onto off
    out up down near per via than like about around if unless because while although though so and
    or but nor not only also again too
"""
AUXILIARIES = """
    is are was were am been being has had does did can could may might must shall should will would
"""
NOT_VERBS = {
    word
    for words in (
        ARTICLES_AND_DETERMINERS,
        PRONOUNS,
        QUESTION_WORDS,
        PREPOSITIONS_AND_CONJUNCTIONS,
        AUXILIARIES,
    )
    for word in words.split()
}

# Former words: the project's old name, image, side stream, validation split or warm-up.
OLD_WORDS = re.compile(
    r"\b(cecil|pictures?|aside|rehearsals?|pretend(?:s|ed|ing)?)\b", re.IGNORECASE
)

# Files in which such words must stay: the words, and the reason.
ALLOWED = {
    "docs/log.md": ({"cecil"}, "says what the old name was"),
    "docs/sections/recorded.py": (
        {"cecil", "picture", "pictures"},
        "translates measurements and tables that were recorded under the old name",
    ),
    "src/fewmore/classifier/model_file/format.py": (
        {"cecil", "pictures"},
        "reads model files from before the first release",
    ),
    "src/fewmore/methods/topic.py": ({"pictures"}, "restores runs from before the first release"),
    "src/fewmore/research/results/migration.py": (
        {"cecil", "picture", "pictures"},
        "reads results from before the first release",
    ),
    "src/fewmore/training/checkpoint.py": (
        {"cecil"},
        "reads checkpoints from before the first release",
    ),
}

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Generated parts of a page, blocks of code, and lines that cannot be wrapped.
GENERATED = re.compile(r"^<!-- (?P<name>.+) -->$.*?^<!-- /(?P=name) -->$", re.DOTALL | re.MULTILINE)
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
UNWRAPPED = ("|", "#", "!", "<", "    ")

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Parse all sources."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES
    }


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        yield f"{path.relative_to(ROOT)}:{number}", line


def report(problems: list[str]) -> str:
    return "\n".join([f"{len(problems)} found", *problems])


def test_lines_are_short() -> None:
    long = [
        f"{place}: {len(line)} columns"
        for path in SOURCES
        for place, line in lines_of(path)
        if len(line) > MAX_COLUMNS
    ]
    assert not long, report(long)


def test_functions_are_short(trees: dict[str, ast.Module]) -> None:
    long = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long.append(f"{path}:{node.lineno} {node.name}: {length} lines")
    assert not long, report(long)


def test_docstrings_begin_with_a_verb(trees: dict[str, ast.Module]) -> None:
    wrong = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Module, ast.ClassDef, *Function)):
                continue
            docstring = ast.get_docstring(node)
            if docstring and not begins_with_verb(docstring):
                line = getattr(node, "lineno", 1)
                wrong.append(f"{path}:{line} {docstring.splitlines()[0]}")
    assert not wrong, report(wrong)


def begins_with_verb(docstring: str) -> bool:
    """Return whether the first word may be a verb: capitalized, not in the list, not a label."""
    if re.match(r"\S+( \d+)?:", docstring):
        return False
    word = docstring.split()[0].rstrip(",")
    return (
        re.fullmatch(r"[A-Z][a-z]+(-[a-z]+)?", word) is not None and word.lower() not in NOT_VERBS
    )


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Sample episodes as index tensors.", True),
        ("Add, remove and replace a class.", True),
        ("Re-encode an image.", True),
        ("The contract of a method.", False),
        ("How a run is judged.", False),
        ("`fewmore data`: fetch a benchmark.", False),
        ("ImageSet: labelled images.", False),
        ("Stage 1: learn features.", False),
        ("images of any size", False),
    ],
)
def test_verbs_are_told_from_other_words(docstring: str, expected: bool) -> None:
    assert begins_with_verb(docstring) == expected


def old_words() -> Iterator[tuple[str, str, str]]:
    """Yield file, line and word of each old word in README, src and docs."""
    files = [ROOT / "README.md"]
    for folder in ("src", "docs"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES]
    for path in sorted(files):
        for place, line in lines_of(path):
            for word in OLD_WORDS.findall(line):
                yield str(path.relative_to(ROOT)), f"{place} {line.strip()}", word.lower()


def test_old_words_are_gone() -> None:
    left = [
        line
        for file, line, word in old_words()
        if file not in ALLOWED or word not in ALLOWED[file][0]
    ]
    assert not left, report(left)


def test_the_list_of_allowed_words_is_not_stale() -> None:
    present = {(file, word) for file, _, word in old_words()}
    unused = [
        f"{file}: {word}"
        for file, (words, _) in ALLOWED.items()
        for word in sorted(words)
        if (file, word) not in present
    ]
    assert not unused, report(unused)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_fits_the_screen(page: Path) -> None:
    text = CODE_BLOCK.sub("", GENERATED.sub("", page.read_text(encoding="utf-8")))
    lines = (line for line in text.splitlines() if not line.startswith(UNWRAPPED))
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []
