"""Write what commands print, for the docs: python docs/outputs.py, then make docs

Types the commands of the quickstart for a folder of drawn shapes, and `fewmore doctor`. What each
prints goes to results/outputs. The weights of mobilenet_v2 must be in the data folder (`fewmore
data get mobilenet_v2`). The pages that `--html` writes are shown too, as docs/figures/*-page.png,
which needs Chromium.
"""

import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from animation import open_browser
from PIL import Image

from fewmore.data.paths import data_root
from fewmore.data.sources import WEIGHTS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results" / "outputs"
SHAPES = ["triangle", "square", "circle", "cross", "star"]
COMMANDS = {
    "check": "fewmore check scans --html check.html",
    "train": "fewmore train photos -o shapes.fewmore",
    "learn": "fewmore learn shapes.fewmore --name hexagon hexagon1.png hexagon2.png",
    "predict": "fewmore predict shapes.fewmore unknown.png --top 3",
    "evaluate": "fewmore evaluate shapes.fewmore test-photos --html mistakes.html",
    "undo": "fewmore undo shapes.fewmore",
    "doctor": "fewmore doctor",
}


def draw(folder: Path) -> None:
    """Draw the photos; those in `scans` have errors, one of each kind."""
    sys.path.insert(0, str(ROOT / "examples"))
    import shapes

    shapes.write(str(folder / "photos"), SHAPES, 20)
    shapes.write(str(folder / "test-photos"), [*SHAPES, "hexagon"], 20, first=100)
    for number in range(1, 3):
        shapes.draw("hexagon", number).save(folder / f"hexagon{number}.png")
    shapes.draw("hexagon", 50).save(folder / "unknown.png")
    scans = shapes.write(str(folder / "scans"), [*SHAPES, "hexagon"], 18)
    shapes.draw("star", 60).save(scans / "circle" / "scan-1.png")
    shapes.draw("cross", 60).save(scans / "triangle" / "scan-2.png")
    copy = Image.open(scans / "square" / "square-04.png")
    copy.resize((120, 120)).save(scans / "hexagon" / "square-copy.jpg")
    shutil.copy(scans / "cross" / "cross-00.png", scans / "cross" / "again.png")
    (scans / "star" / "star-17.jpg").write_bytes(b"")


def show(page: Path, height: int) -> None:
    """Write a screenshot of the top of a page."""
    with open_browser() as browser:
        window = browser.new_page(viewport={"width": 1000, "height": height})
        window.goto(page.as_uri())
        image = Image.open(io.BytesIO(window.screenshot())).convert("RGB").quantize(128)
    image.save(ROOT / "docs" / "figures" / f"{page.stem}-page.png", optimize=True)


def main() -> None:
    """Type the commands one after another, in a window of 100 columns."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(folder)
        weights = folder / ".cache" / "fewmore" / "data" / WEIGHTS["mobilenet_v2"].path
        weights.parent.mkdir(parents=True)
        shutil.copy(data_root() / WEIGHTS["mobilenet_v2"].path, weights)
        environment = {**os.environ, "COLUMNS": "100", "HOME": name, "PYTHONPATH": f"{ROOT}/src"}
        for setting in ("FEWMORE_CACHE", "FEWMORE_DATA", "XDG_CACHE_HOME"):
            environment.pop(setting, None)
        for title, command in COMMANDS.items():
            done = subprocess.run(
                [sys.executable, "-m", *shlex.split(command)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                sys.exit(f"{command}: {done.stdout}{done.stderr}")
            lines = [line.rstrip() for line in done.stdout.strip().splitlines()]
            text = "\n".join([f"$ {command}", *lines]).replace(str(folder), "~")
            (FOLDER / f"{title}.txt").write_text(text + "\n", encoding="utf-8")
            print(text, end="\n\n")
        show(folder / "check.html", 1290)
        show(folder / "mistakes.html", 800)


if __name__ == "__main__":
    main()
