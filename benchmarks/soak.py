"""Run long tests, which `make soak` runs all, and record what they count.

    python benchmarks/soak.py tests/research/test_launchers.py --part runs [--record results]

Other options are pytest's. A test counts by its `record_property`; one that counts nothing is not
recorded.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import torch
from common import Row, make_parser, print_row, record

ROOT = Path(__file__).resolve().parent.parent


def run(words: list[str], report: Path) -> list[Row]:
    """Run tests; return the outcome of each that counts something, and what it counts."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "soak"]
    written = [f"--junitxml={report}", "-o", "junit_family=xunit1"]
    subprocess.run([*pytest, *written, *words], cwd=ROOT)
    rows = []
    for case in ElementTree.parse(report).iter("testcase"):
        counts = {item.attrib["name"]: item.attrib["value"] for item in case.iter("property")}
        if counts:
            name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
            wrong = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            outcome = wrong[0] if wrong else "passed"
            rows.append(print_row({"test": name, "outcome": outcome, "counts": counts}))
    return rows


def main() -> None:
    """Run the tests that are given to pytest, and record them."""
    parser = make_parser(__doc__)
    parser.add_argument("--part", help="ends the name of the JSON file")
    args, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = run(words, Path(folder) / "report.xml")
    record("soak", torch.device("cpu"), rows, {}, args.record, args.part)
    if any(row["outcome"] != "passed" for row in rows):
        sys.exit("a test does not pass")


if __name__ == "__main__":
    main()
