"""Adapt the pages to the site that mkdocs builds; they are written for GitHub.

The home page is README.md, and the icon is that of the teach page. Links to files outside docs/
lead to the repository, but figures of results/ are copied. Below the names in api.md come
signatures and docstrings. A link whose text is a file's name gets the title of that page.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
FIGURES = "recorded"  # the folder of the site for figures of results/
NAME = re.compile(r"^### `(fewmore\.[\w.]+)`\n\n.*\n", re.MULTILINE)
FILE_NAME = re.compile(r"\[[\w./-]+\.md\]\(([\w./-]+\.md)(?=[)#])")
IMAGE = re.compile(r'<img src="([^"]+)" alt="([^"]+)" width="(\d+)">')
# Wide tables get the room of the menu, which has a tab for each of its parts too.
HIDDEN = {"index.md": ["navigation"], "leaderboard.md": ["navigation", "toc"]}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make README.md the home page, and add the icon and the figures of results/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = LINK.sub(lambda found: _from_docs(found[1]), text)
    files.append(File.generated(config, "index.md", content=text))
    icon = ROOT / "src" / "fewmore" / "service" / "page" / "icon.svg"
    files.append(File.generated(config, "figures/icon.svg", abs_src_path=str(icon)))
    for path in sorted((ROOT / "results").rglob("*.png")):
        uri = f"{FIGURES}/{path.relative_to(ROOT).as_posix()}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def _from_docs(target: str) -> str:
    """Return a link of README.md as seen from docs/."""
    return target if "://" in target else posixpath.relpath(target, "docs")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the repository, name pages, and expand the names of api.md."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def lead(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        if "://" in found[1] or target.startswith("docs/"):
            return found[1]
        if target.endswith(".png"):
            return posixpath.relpath(f"docs/{FIGURES}/{target}", folder)
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{target}"

    def name(found: re.Match[str]) -> str:
        path = ROOT / posixpath.normpath(posixpath.join(folder, found[1]))
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{title.partition(':')[0]}]({found[1]}"

    markdown = IMAGE.sub(r'![\2](\1){width="\3"}', markdown)  # so that mkdocs checks the address
    markdown = LINK.sub(lead, FILE_NAME.sub(name, markdown))
    page.meta["hide"] = HIDDEN.get(page.file.src_uri, [])
    if page.file.src_uri == "api.md":
        markdown = NAME.sub(r"::: \1\n", markdown)
    return markdown
