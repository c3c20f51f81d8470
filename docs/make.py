"""Fill in the generated parts of README.md and docs/*.md: `make docs`.

A part stands between `<!-- NAME -->` and `<!-- /NAME -->`; what it says comes from results/*.json and from the code, never from
a hand. `python docs/make.py --check` only says which files are stale.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from cecil.data.benchmarks import BENCHMARKS
from cecil.evaluation import figures, results, tables
from cecil.evaluation.results import RunResult
from cecil.methods import METHODS
from cecil.nn.backbones import BACKBONES, parameters

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PART = re.compile(r"(<!-- (?P<name>[a-z0-9-]+(?: [a-z0-9-]+)*) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
LEGEND = re.compile(r"\w(, \w)*: [^.]*$")  # of a file's tensor dimensions: a paragraph such as "N: classes   d: features"


def measured(benchmark: str) -> list[RunResult]:
    """All recorded results of a benchmark, in the order of the table of methods."""
    found = [results.read(path) for path in sorted(RESULTS.glob(f"{benchmark}-*.json"))]
    order = list(METHODS)
    return sorted(found, key=lambda r: (order.index(r.method) if r.method in order else len(order), r.recipe or "", str(r.settings)))


def table(benchmark: str) -> str:
    """Accuracy by session, measured and published, and below it where each row comes from."""
    rows = measured(benchmark)
    if not rows:
        return "Not measured yet.\n"
    parts = [tables.to_markdown(tables.build(group)) for group in tables.groups(rows)]
    return "\n".join(parts) + "\n" + provenance(rows)


def summary(benchmark: str) -> str:
    """First and last session, average, drop, and what is kept and learnt at the end: measured beside published."""
    rows = [r for r in measured(benchmark) if not r.settings]
    if not rows:
        return "Not measured yet.\n"
    lines = ["| method | base session | last session | average | PD | last: base | last: novel |", "| --- |" + " ---: |" * 6]
    for row in tables.build(rows).rows:
        sessions, (average, drop, base, novel, *_) = row.cells[: len(rows[0].sessions)], row.cells[len(rows[0].sessions) :]
        cells = [
            tables.number(c.mean) + (f" ± {tables.number(c.std)}" if c.std is not None else "")
            for c in (sessions[0], sessions[-1], average, drop, base, novel)
        ]
        name = row.full_label if row.source == "measured" else f"*{row.full_label}*"
        lines.append("| " + " | ".join([name, *cells]) + " |")
    about = f"{', '.join(sorted({str(r.machine['device']) for r in rows}))}, {', '.join(sorted({r.date[:10] for r in rows}))}"
    return "\n".join(lines) + f"\n\n{about}; commands, seeds, seconds and memory in docs/results.md.\n"


def provenance(rows: list[RunResult]) -> str:
    """Command, seeds, machine, date and time of each result."""
    lines = [
        "| method | seeds | seconds a run | peak memory | machine | date | commit | command |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in zip(results.names(rows), rows, strict=True):
        seconds = r.seconds[0]["share of the wall clock"]
        beside = r.machine.get("side_by_side", 1)
        machine = f"{r.machine['device']}, torch {r.machine['torch']}" + (f", {beside} runs side by side" if beside > 1 else "")
        cells = (
            name,
            ", ".join(map(str, dict.fromkeys(r.seeds))),
            f"{seconds:.0f}",
            f"{max(r.peak_memory_mb):,.0f} MB",
            machine,
            r.date[:10],
            (r.commit or "–")[:12],
            f"`{r.command}`",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def graph_or_encoder() -> str:
    """CEC's adapted score beside the plain cosine on the same fine-tuned encoder, and Decoupled-Cosine before stage 2."""
    lines = [
        "| benchmark | seed | Decoupled-Cosine, stage 1 features | plain cosine after stage 2 | CEC, adapted | the graph's part |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for benchmark in BENCHMARKS:
        rows = {r.method: r for r in measured(benchmark) if not r.settings and r.recipe in ("official", "quick")}
        if "cec" not in rows or "cosine_after_pil" not in rows["cec"].extra:
            continue
        cec, before = rows["cec"], rows.get("decoupled-cosine")
        for i, seed in enumerate(cec.seeds):
            plain = cec.extra["cosine_after_pil"][i][-1] or 0.0
            j = before.seeds.index(seed) if before and seed in before.seeds else None
            first = f"{before.accuracy[j][-1]:.2f}" if before is not None and j is not None else "–"
            adapted = cec.accuracy[i][-1]
            lines.append(f"| {benchmark} | {seed} | {first} | {plain:.2f} | {adapted:.2f} | {adapted - plain:+.2f} |")
    return "\n".join(lines) + "\n"


def methods() -> str:
    """The catalogue of methods, from the registry."""
    lines = ["| name | what it is | from | keeps of old pictures |", "| --- | --- | --- | --- |"]
    lines += [f"| `{m.name}` | {m.title} | {m.paper} | {m.memory} |" for m in METHODS.values()]
    return "\n".join(lines) + "\n"


def catalogue() -> str:
    """Each method's file with what its head says, and the rows of the registry that it stands for."""
    files: dict[str, list[str]] = {}
    for m in METHODS.values():
        files.setdefault(m.target.partition(":")[0], []).append(f"| `{m.name}` | {m.title} | {m.paper} | {m.memory} |")
    parts = []
    for module, rows in files.items():
        title, *paragraphs = (import_module(module).__doc__ or "").strip().split("\n\n")
        said = "\n\n".join(p for p in paragraphs if not LEGEND.match(p))
        table = ["| name | what it is | from | keeps of old pictures |", "| --- | --- | --- | --- |", *rows]
        parts.append("\n".join([f"## {title.rstrip('.')}", "", said, "", *table]))
    return "\n\n".join(parts) + "\n"


def example() -> str:
    """The method of one's own that the page shows."""
    path = ROOT / "docs" / "examples" / "power_means.py"
    return f"`{path.relative_to(ROOT)}`:\n\n```python\n{path.read_text()}```\n"


def benchmarks() -> str:
    """The table of benchmarks."""
    lines = [
        "| name | what it is | classes | base | sessions | way × shot | pixels | backbone |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for b in BENCHMARKS.values():
        shape = f"{b.classes} | {b.base} | {b.sessions - 1} | {b.way} × {b.shot}"
        lines.append(f"| `{b.name}` | {b.title} | {shape} | {b.transform.size} | {b.backbone} |")
    return "\n".join(lines) + "\n"


def backbones() -> str:
    """The table of backbones."""
    lines = ["| name | features | parameters | for |", "| --- | --- | --- | --- |"]
    lines += [f"| `{name}` | {info.dim} | {parameters(info.build()):,} | {info.remark} |" for name, info in BACKBONES.items()]
    return "\n".join(lines) + "\n"


def tree() -> str:
    """The source tree, each file with the first sentence of its docstring."""
    source = ROOT / "src" / "cecil"
    lines = ["```text"]
    for folder in [source, *sorted(p for p in source.iterdir() if p.is_dir() and (p / "__init__.py").exists())]:
        inside = folder != source
        lines.append(f"{'  ' if inside else ''}{folder.relative_to(source.parent)}/")
        for path in sorted(folder.glob("*.py")):
            said = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].replace("\n", " ")
            if said:
                lines.append(f"{'    ' if inside else '  '}{path.name:<24} {said.rstrip('.')}")
    return "\n".join([*lines, "```"]) + "\n"


def demo() -> str:
    """What `make demo` printed."""
    path = RESULTS / "demo.txt"
    return f"```text\n{path.read_text().rstrip()}\n```\n" if path.exists() else "Not run yet.\n"


def bench(name: str) -> str:
    """One table a machine of a benchmark's rows."""
    parts = []
    for path in sorted(RESULTS.glob(f"bench-{name}-*.json")):
        found: dict[str, Any] = json.loads(path.read_text())
        columns = list(dict.fromkeys(name for row in found["rows"] for name in row))
        lines = [
            f"{found['machine']}, {found['date']}: `{found['command']}`",
            "",
            "| " + " | ".join(columns) + " |",
            "| --- " * len(columns) + "|",
        ]
        lines += ["| " + " | ".join(_cell(row.get(c, "")) for c in columns) + " |" for row in found["rows"]]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts) if parts else "Not measured yet.\n"


def _cell(value: Any) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:,.0f}"
        if isinstance(value, (int, float))
        else str(value)
    )


PARTS: dict[str, Callable[[], str]] = {
    **{f"table {name}": (lambda name=name: table(name)) for name in BENCHMARKS},
    **{f"summary {name}": (lambda name=name: summary(name)) for name in BENCHMARKS},
    "graph or encoder": graph_or_encoder,
    "methods": methods,
    "catalogue": catalogue,
    "example": example,
    "benchmarks": benchmarks,
    "backbones": backbones,
    "tree": tree,
    "demo": demo,
    "bench scoring": lambda: bench("scoring"),
    "bench training": lambda: bench("training"),
    "bench practice": lambda: bench("practice"),
    "bench serving": lambda: bench("serving"),
    "bench transport": lambda: bench("transport"),
}


def filled(text: str) -> str:
    """The text with every generated part made anew."""
    return PART.sub(lambda m: f"{m[1]}{PARTS[m['name']]()}{m[3]}", text)


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def draw() -> None:
    """The figures that the pages show."""
    for name in BENCHMARKS:
        rows = [r for r in measured(name) if not r.settings]
        if rows:
            figures.save(figures.sessions_figure(rows, tables.published_rows(rows)), ROOT / "docs" / "figures" / f"{name}.png")


def main() -> None:
    stale = [page for page in pages() if filled(page.read_text()) != page.read_text()]
    if "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(str(p.relative_to(ROOT)) for p in stale)}; run: make docs" if stale else 0)
    for page in stale:
        page.write_text(filled(page.read_text()))
        print(f"filled {page.relative_to(ROOT)}")
    draw()


if __name__ == "__main__":
    main()
