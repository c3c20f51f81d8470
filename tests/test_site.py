"""Build the site of the docs as `make docs` does, without the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fewmore

pytest.importorskip("mkdocs")

ROOT = Path(__file__).resolve().parent.parent
# What a browser fetches by itself when it opens a page; links are not.
FETCHED = re.compile(
    r"""<(?:script|img|source|iframe|video)\b[^>]*?\bsrc=["']?([^"' >]+)"""
    r"""|<link\b[^>]*?\bhref=["']?([^"' >]+)|url\(["']?([^"')]+)""",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; `strict` in mkdocs.yml makes a wrong link or anchor an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(pages) > 30
    fetched = {
        (path.name, address)
        for path in pages
        for found in FETCHED.findall(path.read_text(encoding="utf-8"))
        for address in found
        if re.match(r"(https?:)?//", address)
    }
    assert fetched == set()


def test_everything_that_a_page_shows_is_there(site: Path) -> None:
    """mkdocs checks the links of Markdown; a page may also hold HTML."""
    missing = [
        (path.relative_to(site), address)
        for path in site.rglob("*.html")
        if path.name != "404.html"  # its addresses begin at the root of a host
        for found in FETCHED.findall(path.read_text(encoding="utf-8"))
        for address in found
        if address and not re.match(r"\w+:|#", address)
        if not (path.parent / address.partition("?")[0].partition("#")[0]).exists()
    ]
    assert missing == []


def test_every_page_is_in_the_menu(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "results").glob("*.md")]
    for page in pages:
        address = page.relative_to(ROOT / "docs").with_suffix("").as_posix() + "/"
        assert f'href="{address}"' in home, page


def test_the_api_page_has_every_public_name_with_its_methods(site: Path) -> None:
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    names = [name for name in fewmore.__all__ if not name.startswith("__")]
    for name in (*names, "IncrementalClassifier.learn", "PrototypeClassifier.is_known"):
        assert f'id="fewmore.{name}"' in page, name


def test_tables_of_the_leaderboard_can_be_sorted(site: Path) -> None:
    page = (site / "leaderboard" / "index.html").read_text(encoding="utf-8")
    assert "../leaderboard.js" in page
    assert (site / "leaderboard.js").read_bytes() == (ROOT / "docs/leaderboard.js").read_bytes()
