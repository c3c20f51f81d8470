"""Write who judges fewmore beside its own tests, and what was measured of the tests."""

import re
from typing import NamedTuple

from sections import recorded
from sections.markdown import bullet, markdown_table, paragraph
from sections.recorded import ROOT

LOWEST = 10  # files that are named
ONNXRUNTIME_WEB = ROOT / "src" / "fewmore" / "classifier" / "web" / "__init__.py"
ELSEWHERE = (
    "accel/",
    "cli/ray_stream.py",
    "research/launchers/ray.py",
    "service/ray_serve.py",
)  # see line_coverage.py


class Judge(NamedTuple):
    """Describe a program of others that judges fewmore."""

    name: str
    what: str
    where: str  # the test or command that asks it
    package: str = ""  # that brings it, if it has another name


JUDGES = (
    Judge(
        "scikit-learn",
        "`check_estimator`: conformance to its API",
        "tests/classifier/test_sklearn_estimator.py",
    ),
    Judge(
        "scikit-learn",
        "AUROC, nearest class means, confusion matrix, balanced accuracy",
        "tests/test_judges.py",
    ),
    Judge("torchmetrics", "the expected calibration error", "tests/test_judges.py"),
    Judge("scipy", "the earth mover's distance", "tests/nn/test_transport.py"),
    Judge("onnxruntime", "exported models give the same", "tests/classifier/test_export.py"),
    Judge(
        "onnxruntime-web",
        "the exported web page gives the same, in Chromium",
        "tests/classifier/test_export_web.py",
    ),
    Judge("schemathesis", "the service and its OpenAPI document", "tests/service/test_schema.py"),
    Judge(
        "Open Inference Protocol",
        "the service keeps to its YAML",
        "tests/service/test_open_inference.py",
    ),
    Judge(
        "axe-core",
        "the teach page is accessible",
        "tests/service/page/test_access.py",
        "axe-playwright-python",
    ),
    Judge("validate-pyproject", "pyproject.toml", "tests/test_judges.py"),
    Judge("check-wheel-contents", "the wheel", "tests/test_wheel.py"),
    Judge("mkdocs", "links and anchors of the docs", "tests/test_site.py"),
    Judge("mypy", "strict types, also of a user's program: examples/sort_photos.py", "`make test`"),
    Judge("import-linter", "which package imports which", "`make test`"),
    Judge("codespell", "spelling", "`make test`"),
    Judge("ruff", "lint and format", "`make test`"),
    Judge("pip-audit", "known vulnerabilities of all that is installed", "`make soak`"),
)


def judges() -> str:
    """List the judges with the versions that tests run with."""
    rows = [
        (judge.name, _version(judge.package or judge.name), judge.what, _place(judge.where))
        for judge in JUDGES
        if judge.where.startswith("`") or (ROOT / judge.where).exists()
    ]
    return "\n".join(markdown_table(("program", "version", "checks", "in"), rows)) + "\n"


def _place(where: str) -> str:
    return where if where.startswith("`") else f"`{where}`"


def _version(name: str) -> str:
    """Return the pinned version of a package, of Python or of npm."""
    for path in (ROOT / "constraints.txt", ONNXRUNTIME_WEB):
        text = path.read_text(encoding="utf-8")
        if found := re.search(rf"^{name}==(\S+?)(;|$)|\b{name}-(\d[\d.]*\d)\.tgz", text, re.M):
            return found[1] or found[3]
    return "–"


def coverage() -> str:
    """Write which share of the lines the tests run: in all, by package, and the lowest files."""
    measured = recorded.read_benchmark(recorded.RESULTS / "bench-line_coverage-cpu.json")
    about, rows = measured["about"], measured["rows"]
    by_package: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        package = row["file"].partition("/")[0] if "/" in row["file"] else "fewmore"
        by_package.setdefault(package, []).append((row["lines"], row["run %"]))
    cells = []
    for package, files in sorted(by_package.items()):
        lines = sum(count for count, _ in files)
        run = sum(count * percent for count, percent in files) / lines
        lowest = min(percent for _, percent in files)
        cells.append((package, str(len(files)), f"{lines:,}", f"{run:.1f}", f"{lowest:.1f}"))
    first = paragraph(
        f"The tests run {about['run %']:.1f} % of {about['lines']:,} lines in {about['files']} "
        f"files ({measured['machine']}, {measured['date']}: `make coverage`)."
    )
    table = markdown_table(("package", "files", "lines", "run %", "lowest file %"), cells, "lrrrr")
    others = [row for row in rows if not row["file"].startswith(ELSEWHERE)][:LOWEST]
    named = ", ".join(f"`{row['file']}` {row['run %']:.0f} %" for row in others)
    last = bullet(f"The lowest of all other files: {named}.")
    other = bullet(
        "Most of `accel` runs on an NVIDIA GPU alone, where `pytest -m gpu` runs it; the files of "
        "Ray are run by `make soak`, where it is installed."
    )
    return "\n".join([first, "", *table, "", other, last]) + "\n"


def versions() -> str:
    """List the versions of Python and PyTorch with which all tests were run."""
    measured = recorded.read_benchmark(recorded.RESULTS / "bench-python_versions-cpu.json")
    titles = list(measured["rows"][0])
    cells = [[f"{row[title]}" for title in titles] for row in measured["rows"]]
    lines = [f"{measured['date']}: `{measured['command']}`", "", *markdown_table(titles, cells)]
    return "\n".join(lines) + "\n"


def long_tests() -> str:
    """List what long tests counted."""
    lines = []
    cells = []
    for path in sorted(recorded.RESULTS.glob("bench-soak-*.json")):
        measured = recorded.read_benchmark(path)
        lines.append(f"{measured['machine']}, {measured['date']}: `{measured['command']}`  ")
        for row in measured["rows"]:
            counts = "; ".join(f"{name}: {int(count):,}" for name, count in row["counts"].items())
            cells.append((f"`{row['test'].partition('[')[0]}`", counts, row["outcome"]))
    table = markdown_table(("test", "counted", "outcome"), cells)
    return "\n".join([*lines, "", *table]) + "\n"
