"""Run the tests and record which share of each file's lines they run: make coverage

    python benchmarks/line_coverage.py --record results

Lines that processes of the tests run count too, unless the test kills the process. Ends with exit
code 1 if less than 85 % of a file is run. Files of the fast path on GPUs and of Ray do not count
for that: their lines need an NVIDIA GPU, and Ray.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from common import make_parser, print_row, record

ROOT = Path(__file__).resolve().parent.parent
LEAST = 85.0  # percent
# Files whose lines need a GPU, or Ray, which `make soak` has.
ELSEWHERE = ("accel/", "cli/ray_stream.py", "research/launchers/ray.py", "service/ray_serve.py")
TESTS = ("-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider")


def measure(folder: Path) -> dict[str, tuple[int, float]]:
    """Run the tests; return the number of lines of each file, and the percentage that was run."""
    data = ["--data-file", str(folder / "coverage")]
    tests = subprocess.run([sys.executable, "-m", "coverage", "run", *data, *TESTS], cwd=ROOT)
    if tests.returncode:
        sys.exit("the tests fail: their coverage is not recorded")
    for words in (["combine", "-q", *data], ["json", "-q", *data, "-o", str(folder / "out.json")]):
        subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=True)
    files = json.loads((folder / "out.json").read_text())["files"]
    return {
        str(Path(path).relative_to("src/fewmore")): (
            found["summary"]["num_statements"],
            found["summary"]["percent_covered"],
        )
        for path, found in sorted(files.items())
        if found["summary"]["num_statements"]
    }


def main() -> None:
    """Measure, print the files with the least first, and record all."""
    args = make_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = measure(Path(folder))
    lines = sum(count for count, _ in files.values())
    run = sum(count * percent / 100 for count, percent in files.values())
    rows = [
        print_row({"file": name, "lines": count, "run %": percent})
        for name, (count, percent) in sorted(files.items(), key=lambda item: item[1][1])
    ]
    about = {"files": len(files), "lines": lines, "run %": 100 * run / lines, "least %": LEAST}
    record("line_coverage", torch.device("cpu"), rows, about, args.record)
    low = [
        str(row["file"])
        for row in rows
        if row["run %"] < LEAST and not str(row["file"]).startswith(ELSEWHERE)
    ]
    if low:
        sys.exit(f"less than {LEAST:.0f} % is run of: {', '.join(low)}")


if __name__ == "__main__":
    main()
