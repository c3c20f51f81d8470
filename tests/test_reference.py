"""Check that the reference has every public name, and that an example of each is run by a test."""

import re
from pathlib import Path

import pytest

import fewmore

DOCS = Path(__file__).resolve().parent.parent / "docs"
RUN = ("quickstart", "classifier", "export", "python")  # pages whose snippets are run in order
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def examples() -> str:
    pages = [(DOCS / f"{name}.md").read_text(encoding="utf-8") for name in RUN]
    for name in RUN:
        tested = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")]
        assert any(f'"docs" / "{name}.md"' in text for text in tested), f"{name}.md is not run"
    return "\n".join(snippet for page in pages for snippet in SNIPPET.findall(page))


def public(cls: type) -> list[str]:
    """Return the names that a class itself defines; scikit-learn's own are documented there."""
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "fewmore").startswith("fewmore")
    ]


@pytest.mark.parametrize("name", ["IncrementalClassifier", "PrototypeClassifier", "Prediction"])
def test_every_method_and_attribute_has_an_example_that_is_run(name: str, examples: str) -> None:
    cls = getattr(fewmore, name)
    names = {*public(cls), *getattr(cls, "__dataclass_fields__", ())}
    assert names
    missing = {one for one in names if not re.search(rf"\.{one}\b", examples)}
    assert missing == set()


def test_load_has_an_example_that_is_run(examples: str) -> None:
    assert re.search(r"\bload\(\"birds", examples)


def test_every_error_is_explained() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in fewmore.__all__:
        if not name.startswith("__"):
            assert re.search(rf"^### `fewmore\.{name}`\n\n[A-Z].+", page, re.MULTILINE), name
