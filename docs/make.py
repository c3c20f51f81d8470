"""Fill in the generated parts of README.md and docs/*.md: `make docs`.

A part stands between `<!-- NAME -->` and `<!-- /NAME -->`; what it says comes from results/ and from the code, never from a hand.
`python docs/make.py --check` only says which files are stale.

    results/BENCHMARK-METHOD….json          the tables, one row each
    results/explain/*.json                  the same with other settings: what the gaps to published rows are checked by
    results/studies/STUDY-BENCHMARK/        what `fewmore reproduce` has written: the paper's claims are judged by it (claims.py)
    results/bench-….json                    speed and memory
"""

import ast
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import claims

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.methods import METHODS
from fewmore.nn.backbones import BACKBONES, parameters
from fewmore.research import results
from fewmore.research.published import ROW_OF_METHOD
from fewmore.research.reporting import figures, tables
from fewmore.research.results import RunResult, published_row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PART = re.compile(
    r"(<!-- (?P<name>[a-z0-9-]+(?: [a-z0-9-]+)*) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL
)
LEGEND = re.compile(
    r"\w(, \w)*: [^.]*$"
)  # of a file's tensor dimensions: a paragraph such as "N: classes   d: features"


def measured(benchmark: str) -> list[RunResult]:
    """All recorded results of a benchmark, in the order of the table of methods."""
    found = [results.read(path) for path in sorted(RESULTS.glob(f"{benchmark}-*.json"))]
    order = list(METHODS)
    return sorted(
        found,
        key=lambda r: (
            order.index(r.method) if r.method in order else len(order),
            r.recipe or "",
            str(r.settings),
        ),
    )


def table(benchmark: str) -> str:
    """Accuracy by session, measured and published, and below it where each row comes from."""
    rows = measured(benchmark)
    if not rows:
        return "Not measured yet.\n"
    parts = [tables.to_markdown(tables.build(group)) for group in tables.groups(rows)]
    return "\n".join(parts) + "\n" + provenance(rows)


def summary(benchmark: str) -> str:
    """The paper's comparison in short: how it begins and ends, and what is kept and learnt at the end; published numbers in italics."""
    rows = [r for r in measured(benchmark) if r.method in ROW_OF_METHOD and not r.settings]
    if not rows:
        return "Not measured yet.\n"
    titles = (
        "method",
        "base session",
        "last session",
        "*published*",
        "PD",
        "*published*",
        "last: base",
        "last: novel",
    )
    lines = ["| " + " | ".join(titles) + " |", "| --- |" + " ---: |" * (len(titles) - 1)]
    for row, result in zip(tables.build(rows, with_published=False).rows, rows, strict=True):
        sessions, (_, drop, base, novel, *_) = (
            row.cells[: len(result.sessions)],
            row.cells[len(result.sessions) :],
        )
        theirs = published_row(result)
        shown = [
            _spread(cell.mean, cell.std) for cell in (sessions[0], sessions[-1], drop, base, novel)
        ]
        shown[2:2], shown[4:4] = (
            [_italic(theirs and theirs.sessions[-1])],
            [_italic(theirs and theirs.pd)],
        )
        lines.append("| " + " | ".join([row.full_label, *shown]) + " |")
    about = f"{', '.join(sorted({str(r.machine['device']) for r in rows}))}, {', '.join(sorted({r.date[:10] for r in rows}))}"
    return (
        "\n".join(lines)
        + f"\n\n{about}; all sessions, commands, seeds, seconds and memory in docs/results.md.\n"
    )


def _spread(mean: float | None, std: float | None) -> str:
    return tables.number(mean) + (f" ± {tables.number(std)}" if std is not None else "")


def _italic(value: float | None) -> str:
    return f"*{tables.number(value)}*" if value is not None else "–"


def provenance(rows: list[RunResult]) -> str:
    """Command, seeds, machine, date and time of each result."""
    lines = [
        "| method | seeds | seconds a run | peak memory | machine | date | commit | command |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in zip(results.names(rows), rows, strict=True):
        seconds = r.seconds[0]["share of the wall clock"]
        beside = r.machine.get("side_by_side", 1)
        machine = f"{r.machine['device']}, torch {r.machine['torch']}" + (
            f", {beside} runs side by side" if beside > 1 else ""
        )
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
        rows = {
            r.method: r
            for r in measured(benchmark)
            if not r.settings and r.recipe in ("official", "quick")
        }
        if "cec" not in rows or "cosine_after_pil" not in rows["cec"].extra:
            continue
        cec, before = rows["cec"], rows.get("decoupled-cosine")
        for i, seed in enumerate(cec.seeds):
            plain = cec.extra["cosine_after_pil"][i][-1] or 0.0
            j = before.seeds.index(seed) if before and seed in before.seeds else None
            first = f"{before.accuracy[j][-1]:.2f}" if before is not None and j is not None else "–"
            adapted = cec.accuracy[i][-1]
            lines.append(
                f"| {benchmark} | {seed} | {first} | {plain:.2f} | {adapted:.2f} | {adapted - plain:+.2f} |"
            )
    return "\n".join(lines) + "\n"


# ---- the paper's claims

ALT = {
    "comparison": {
        "sessions": "accuracy by session of all methods; published rows dashed",
        "base-novel": "accuracy on base classes, on new classes and their harmonic mean, by session",
    },
    "ablation": {
        "bars": "bars of average accuracy and performance drop, one for each row of the ablation"
    },
    "rotation": {"rotation": "points of average accuracy and performance drop by rotation angles"},
    "ways-shots": {"ways-shots": "grid of last accuracies by ways and shots"},
    "confusion": {
        "confusion": "confusion matrices of Decoupled-Cosine, of CEC without its adapter and of CEC, and the difference of the last two"
    },
    "tsne": {
        "tsne": "features of nine classes, with arrows from the class weights before adaptation to those after"
    },
}  # what a study's figures show


RULES = (
    "- A claim is a list of comparisons: a row is held against another one by some measure. The *gain* is how much better it is, "
    "seed by seed; for PD and entropy, less is better.",
    f"- With several seeds a comparison holds when the mean gain is above 0 at {claims.CERTAINTY:.0%} certainty (Student's t, one-sided). "
    f"With one seed the gain must exceed {claims.DEVIATIONS} standard deviations of CEC's seeds in that measure; where these are unknown, "
    "it holds in part at most. *Needed* is what the gain must exceed.",
    "- It holds in part when the gain is above 0 and not beyond what is needed. Otherwise it does not hold.",
    "- A claim holds when all its comparisons do, does not hold when none does, not even in part, and holds in part otherwise.",
    "- At such a certainty one comparison in twenty holds by chance where there is nothing to be found.",
)


def verdicts() -> str:
    """All claims with their verdicts, in short."""
    lines = [
        "| | the paper's claim | verdict | comparisons that hold | in part | do not |",
        "| ---: | --- | --- | ---: | ---: | ---: |",
    ]
    for number, claim in enumerate(claims.CLAIMS, 1):
        parts = claim.parts(claims.Evidence(RESULTS))
        counts = [
            str(sum(part.verdict == verdict for part in parts))
            for verdict in (claims.HOLDS, claims.PART, claims.NOT)
        ]
        counts = ["–"] * 3 if claims.overall(parts) == claims.UNKNOWN else counts
        lines.append(
            f"| {number} | [{claim.title}](#{_anchor(number, claim)}) | {_verdict(parts)} | {' | '.join(counts)} |"
        )
    return "\n".join([*lines, "", *RULES]) + "\n"


def _anchor(number: int, claim: claims.Claim) -> str:
    """The heading's address, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", f"{number}. {claim.title}".lower()).replace(" ", "-")


def _verdict(parts: Sequence[claims.Part]) -> str:
    found = claims.overall(parts)
    left = (
        sorted({part.where for part in parts if part.verdict == claims.UNKNOWN})
        if found != claims.UNKNOWN
        else []
    )
    return f"**{found}**" + (
        f", as far as measured: rows are missing on {', '.join(left)}" if left else ""
    )


def study(name: str) -> str:
    """A study of the paper: its figures, the claims that it decides, and its table."""
    own = [(number, claim) for number, claim in enumerate(claims.CLAIMS, 1) if claim.study == name]
    benchmarks = own[0][1].benchmarks if own else (claims.MAIN,)
    parts = [_drawn(name, benchmark) for benchmark in benchmarks]
    return "\n".join([*parts, *(_claim(*one) for one in own)])


def _drawn(name: str, benchmark: str) -> str:
    """The study's figures and its table, or how to measure it."""
    evidence = claims.Evidence(RESULTS)
    folder, rows = evidence.folder(name, benchmark), evidence.rows(name, benchmark)
    if not rows:
        return f"On {benchmark} not measured yet: `{claims.command(name, benchmark)}`\n"
    links = [
        f"![{benchmark}: {alt}]({(Path('..') / folder.relative_to(ROOT) / figure).as_posix()}.png)"
        for figure, alt in ALT[name].items()
    ]
    runs, seconds = (
        sum(r.runs for r in rows),
        sum(time["share of the wall clock"] for r in rows for time in r.seconds),
    )
    machines, dates, commands = (
        ", ".join(sorted(found))
        for found in (
            {str(r.machine["device"]) for r in rows},
            {r.date[:10] for r in rows},
            {f"`{r.command}`" for r in rows},
        )
    )
    about = f"{runs} run{'s' if runs > 1 else ''}, {seconds / 60:.1f} minutes in all, on {machines}, {dates}: {commands}"
    table = (folder / "table.md").read_text(encoding="utf-8")
    return (
        "\n\n".join(
            [*links, about, f"<details><summary>The table</summary>\n\n{table}\n</details>"]
        )
        + "\n"
    )


def _claim(number: int, claim: claims.Claim) -> str:
    """One claim: what the paper says, how it is judged, and every comparison."""
    parts = claim.parts(claims.Evidence(RESULTS))
    verdict = f"Verdict: {_verdict(parts)}."
    if claims.overall(parts) == claims.UNKNOWN:
        verdict += "".join(
            f" To be measured with `{claims.command(claim.study, benchmark)}`."
            for benchmark in claim.benchmarks
        )
    lines = [
        f"### {number}. {claim.title}",
        "",
        verdict,
        "",
        f"*The paper:* {claim.said}",
        "",
        f"*Judged by:* {claim.judged}",
    ]
    if claims.overall(parts) != claims.UNKNOWN:
        theirs = (
            "published (CUB200)" if claim.study in ("ablation", "rotation") else "published"
        )  # where the paper has those studies
        several = len({part.where for part in parts}) > 1
        titles = (
            *(["on"] if several else []),
            "row",
            "against",
            "by",
            theirs,
            "measured",
            "gain",
            "needed",
            "seeds",
            "verdict",
        )
        lines += [
            "",
            "| " + " | ".join(titles) + " |",
            "|" + " --- |" * (3 + several) + " ---: |" * 5 + " --- |",
        ]
        lines += [
            "| " + " | ".join([*([part.where] if several else []), *_part(part)]) + " |"
            for part in parts
        ]
    return "\n".join(lines) + "\n"


def _part(part: claims.Part) -> list[str]:
    """A comparison as cells of a table."""
    theirs = (
        " / ".join(map(tables.number, part.published)) if part.published != (None, None) else "–"
    )
    names = [part.better, part.worse, part.measure, theirs]
    if part.measured is None or part.gain is None:
        return [*names, "–", "–", "–", "–", part.verdict]
    gain = ("+" if part.gain.mean > 0 else "") + _figure(part.gain)
    limit = tables.number(None if math.isnan(part.needed) else part.needed)
    return [
        *names,
        " / ".join(map(_figure, part.measured)),
        gain,
        limit,
        str(part.gain.seeds),
        part.verdict,
    ]


def _figure(figure: claims.Figure) -> str:
    return _spread(figure.mean, figure.std)


# ---- gaps to published rows

GAP = 5.0  # points at the last session that want an explanation


def gaps(benchmark: str) -> str:
    """Rows that end far from the published ones, and below each the same method with other settings, run to find out why."""
    found = measured(benchmark)
    compared = claims.Evidence(RESULTS).rows("comparison", benchmark)
    plain = {
        r.method: r for r in (*compared, *found) if not r.settings and r.recipe == "official"
    }  # the main table's, if it has the row
    own = [plain[method] for method in METHODS if method in plain and published_row(plain[method])]
    tried = [r for r in found if r not in own] + [
        results.read(path) for path in sorted((RESULTS / "explain").glob("*.json"))
    ]
    far = [r for r in own if abs(_last_gap(r)) > GAP]
    if not far:
        return f"No row of {benchmark} ends more than {GAP:.0f} points from the published one.\n"
    titles = (
        "method",
        "base session",
        "*published*",
        "difference",
        "last session",
        "*published*",
        "difference",
    )
    lines = ["| " + " | ".join(titles) + " |", "| --- |" + " ---: |" * (len(titles) - 1)]
    for row in far:
        experiments = [r for r in tried if r.benchmark == benchmark and r.method == row.method]
        lines.append(_gap(f"**{row.method}**", row, row))
        lines += [_gap(f"↳ {_changes(r, row)}", r, row) for r in experiments]
        if not experiments:
            elsewhere = sorted(
                {r.benchmark for r in tried if r.method == row.method and r.settings}
            )
            said = f"see {', '.join(elsewhere)}" if elsewhere else "no experiment yet"
            lines.append(f"| ↳ {said} |" + " |" * (len(titles) - 1))
    near = [r.method for r in own if r not in far]
    return "\n".join(lines) + (
        f"\n\nWithin {GAP:.0f} points: {', '.join(near)}.\n" if near else "\n"
    )


def _last_gap(result: RunResult) -> float:
    theirs = published_row(result)
    return (
        math.nan
        if theirs is None
        else sum(result.last) / result.runs - float(theirs.sessions[-1] or 0)
    )


def _gap(name: str, result: RunResult, published_as: RunResult) -> str:
    """One line: a result's first and last session beside the published ones of a method."""
    theirs = published_row(published_as)
    cells = [name]
    for session in (0, -1):
        ours = tables.spread([run[session] for run in result.accuracy])
        said = theirs.sessions[session] if theirs else None
        difference = None if said is None or ours.mean is None else ours.mean - said
        cells += [
            _spread(ours.mean, ours.std),
            _italic(said),
            tables.Cell(difference, signed=True).text,
        ]
    return "| " + " | ".join(cells) + " |"


def _changes(result: RunResult, beside: RunResult) -> str:
    """What is different from a row: the recipe and the settings."""
    recipe = [f"recipe {result.recipe}"] if result.recipe != beside.recipe else []
    return (
        ", ".join([*recipe, *(f"{key}={value}" for key, value in result.settings.items())])
        or "the same again"
    )


# ---- what there is


def methods() -> str:
    """The catalogue of methods, from the registry."""
    lines = ["| name | what it is | from | keeps of old images |", "| --- | --- | --- | --- |"]
    lines += [f"| `{m.name}` | {m.title} | {m.paper} | {m.memory} |" for m in METHODS.values()]
    return "\n".join(lines) + "\n"


def catalogue() -> str:
    """Each method's file with what its head says, and the rows of the registry that it stands for."""
    files: dict[str, list[str]] = {}
    for m in METHODS.values():
        files.setdefault(m.target.partition(":")[0], []).append(
            f"| `{m.name}` | {m.title} | {m.paper} | {m.memory} |"
        )
    parts = []
    for module, rows in files.items():
        title, *paragraphs = (import_module(module).__doc__ or "").strip().split("\n\n")
        said = "\n\n".join(p for p in paragraphs if not LEGEND.match(p))
        table = [
            "| name | what it is | from | keeps of old images |",
            "| --- | --- | --- | --- |",
            *rows,
        ]
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
    lines += [
        f"| `{name}` | {info.dim} | {parameters(info.build()):,} | {info.remark} |"
        for name, info in BACKBONES.items()
    ]
    return "\n".join(lines) + "\n"


def tree() -> str:
    """The source tree, each file with the first sentence of its docstring."""
    source = ROOT / "src" / "fewmore"
    lines = ["```text"]
    for folder in [
        source,
        *sorted(p for p in source.iterdir() if p.is_dir() and (p / "__init__.py").exists()),
    ]:
        inside = folder != source
        lines.append(f"{'  ' if inside else ''}{folder.relative_to(source.parent)}/")
        for path in sorted(folder.glob("*.py")):
            said = (
                (ast.get_docstring(ast.parse(path.read_text())) or "")
                .split("\n\n")[0]
                .replace("\n", " ")
            )
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
        lines += [
            "| " + " | ".join(_cell(row.get(c, "")) for c in columns) + " |"
            for row in found["rows"]
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts) if parts else "Not measured yet.\n"


def one_seed() -> str:
    """How long the paper's method takes, in one sentence."""
    found = json.loads((RESULTS / "bench-oneseed-gpu.json").read_text())
    first, then = (row["from start to end s"] for row in found["rows"])
    return (
        f"One seed of CEC, unaltered, takes {then:.0f} s from the typed command to the drawn report, "
        f"and {first:.0f} s the first time on a machine\n({found['machine']}, {found['date']}: `{found['command']}`).\n"
    )


def confidences() -> str:
    """How far confidences and "none of these" can be trusted as classes are added."""
    photos = {
        row["what"]: row["value"]
        for row in json.loads((RESULTS / "bench-practice-cpu.json").read_text())["rows"]
    }
    measured = json.loads((RESULTS / "bench-calibration-gpu.json").read_text())
    about, first, before, last = measured["about"], measured["rows"][0], *measured["rows"][-2:]
    few, many = first["classes"], last["classes"]
    then, later = (
        photos[f"accepted as known, {what}, %"]
        for what in ("20 classes", "all classes after learning 10 × 5")
    )
    strange = photos["AUROC, images of known classes against those of 10 others"]
    known, auroc = (
        "accepted as known %",
        "AUROC of classes to come",
    )  # of which there are none at the last session
    lines = [
        f"- Confidences hold. Trained on {few} classes of CIFAR100, and taught {many - few} more from five images each, the expected",
        f"  calibration error on test images of all {many} is {about['last session, calibrated %']:.1f} %; "
        f"uncalibrated it is {about['last session, uncalibrated %']:.1f} %.",
        f'- "None of these" holds over ten more classes with `mobilenet_v2` on photos: {then:.0f} % of new images of 20 known',
        f"  classes are accepted, and {later:.0f} % of those of all 30 after ten more were learnt. Images of unknown classes are told",
        f"  from those of the 20 known ones with an AUROC of {strange:.2f}.",
        f"- It does not hold with a small network trained from scratch: on CIFAR100, from {few} classes to {many}, the share of",
        f"  known images that are accepted drifts from {first[known]:.0f} % to {last[known]:.0f} %, and the",
        f"  AUROC against classes to come falls from {first[auroc]:.2f} to {before[auroc]:.2f}, where 0.5 is chance: in the end nearly any",
        '  image is familiar. Do not rely on "none of these" there once many classes were added.',
    ]
    return "\n".join(lines) + "\n"


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
    **{f"gaps {name}": (lambda name=name: gaps(name)) for name in BENCHMARKS},
    **{f"study {name}": (lambda name=name: study(name)) for name in ALT},
    "verdicts": verdicts,
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
    "bench calibration": lambda: bench("calibration"),
    "confidences": confidences,
    "bench serving": lambda: bench("serving"),
    "bench transport": lambda: bench("transport"),
    "bench resolution": lambda: bench("resolution"),
    "bench oneseed": lambda: bench("oneseed"),
    "one seed": one_seed,
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
        rows = [
            r for r in measured(name) if r.method in (*ROW_OF_METHOD, "joint") and not r.settings
        ]
        rows = [r for r in rows if r.recipe == "official"] or rows  # others are in the table
        if rows:
            figures.save(
                figures.sessions_figure(rows, tables.published_rows(rows)),
                ROOT / "docs" / "figures" / f"{name}.png",
            )


def main() -> None:
    stale = [page for page in pages() if filled(page.read_text()) != page.read_text()]
    if "--check" in sys.argv:
        sys.exit(
            f"stale: {', '.join(str(p.relative_to(ROOT)) for p in stale)}; run: make docs"
            if stale
            else 0
        )
    for page in stale:
        page.write_text(filled(page.read_text()))
        print(f"filled {page.relative_to(ROOT)}")
    draw()


if __name__ == "__main__":
    main()
