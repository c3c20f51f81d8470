"""Run all tests with other versions of Python and PyTorch, and record what passed.

    python benchmarks/python_versions.py 3.10/bin/python 3.13/bin/python --record results

Each is the Python of an environment with `pip install -e '.[test]'`. What pytest prints goes to
build/python-VERSION.log; a log that is there already is read instead.
"""

import re
import subprocess
from pathlib import Path

import torch
from common import Row, make_parser, print_row, record

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("-m", "pytest", "-v", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider")
ABOUT = "import sys, torch; print(sys.version.split()[0], torch.__version__)"
OUTCOMES = ("passed", "skipped", "failed", "error")


def run(python: Path) -> Row:
    """Run the tests with one Python, and count the outcomes."""
    about = subprocess.run([python, "-c", ABOUT], capture_output=True, text=True, check=True)
    version, torch_version = about.stdout.split()
    log = ROOT / "build" / f"python-{version}.log"
    if not log.exists():
        log.parent.mkdir(exist_ok=True)
        with log.open("w") as file:
            subprocess.run([python, *TESTS], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    last = log.read_text().splitlines()[-1]
    found = {name: re.search(rf"(\d+) {name}", last) for name in OUTCOMES}
    counts = {name: int(match[1]) if match else 0 for name, match in found.items()}
    return print_row({"Python": version, "PyTorch": torch_version, **counts})


def main() -> None:
    """Run the tests with each Python, one after another."""
    parser = make_parser(__doc__)
    parser.add_argument("pythons", type=Path, nargs="+")
    args = parser.parse_args()
    rows = [run(python) for python in args.pythons]
    record("python_versions", torch.device("cpu"), rows, {}, args.record)


if __name__ == "__main__":
    main()
