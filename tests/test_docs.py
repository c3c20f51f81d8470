"""README and docs say what the results in the repository say."""

import subprocess
import sys
from pathlib import Path

import pytest

from cecil.evaluation import results

ROOT = Path(__file__).resolve().parent.parent


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "make.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", sorted(p for p in (ROOT / "results").glob("*.json") if not p.name.startswith("bench-")), ids=lambda p: p.stem
)
def test_recorded_results_follow_the_schema(path: Path) -> None:
    result = results.read(path)
    assert path.stem == results.file_name(result)
    assert result.commit
    assert not result.commit.endswith("-dirty")
    assert results.to_json(result) == path.read_text()


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    import re

    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
