"""A run folder as one page: report.html, which needs no other file, no network and no script.

It holds the table, the curves, base against novel classes, the worst confusions with images, calibration, time and memory, the
config, and how to repeat the run. Figures are drawn in colours that the page sets, so that they follow light and dark.
"""

import base64
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fewmore.classifier.calibration import expected_calibration_error
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.io import write_bytes
from fewmore.research import results
from fewmore.research.metrics import Floats, Ints, confusion_matrix, mean_std
from fewmore.research.reporting import figures, tables
from fewmore.research.results import RunResult
from fewmore.research.runner import run_name
from fewmore.training.checkpoint import read_state

CONFUSIONS = 6  # pairs of classes that are shown
MISTAKEN, MEANT = 4, 2  # images of each: that were mistaken, and of what they were taken for
THUMBNAIL = 96  # pixels, at most
TINY = 48  # pixels: smaller images are enlarged without blur
# The figures' colours, by the names that the page gives them.
COLOURS = {
    figures.INK: "ink", figures.BLACK: "ink", figures.FAINT: "faint", figures.GRID: "grid", figures.VERMILION: "vermilion",
    figures.BLUE: "blue", figures.GREEN: "green", figures.GREY: "grey",
}  # fmt: skip
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f5f6f8; --ink: #222222; --faint: #636770; --grid: #e2e4e8;
  --vermilion: #d55e00; --blue: #0072b2; --green: #00835f; --grey: #888888; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181d; --card: #1f242b; --ink: #e9e9e6; --faint: #a3a8b0; --grid: #343a43;
  --vermilion: #f58a3c; --blue: #56b4e9; --green: #2cc295; --grey: #8b9099; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.2rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p, ul { margin: .4rem 0; max-width: 44rem; }
.faint { color: var(--faint); font-size: .9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .7rem; margin: 1.2rem 0; }
.cards div { background: var(--card); border-radius: .6rem; padding: .7rem .9rem; }
.cards b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; vertical-align: top; }
th:first-child { text-align: left; padding-left: 0; }
tr.published { color: var(--faint); font-style: italic; }
td small { display: block; color: var(--faint); }
figure { margin: .6rem 0; }
figure svg { display: block; width: 100%; max-width: 33rem; height: auto; }
figure svg text { font-family: inherit !important; }
.pair { border-top: 1px solid var(--grid); padding: .7rem 0; }
.images { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; margin-top: .4rem; }
.images img { width: 4rem; height: 4rem; object-fit: cover; border-radius: .3rem; background: var(--card); }
.images img.tiny { image-rendering: pixelated; }
.badge { border: 1px solid currentColor; border-radius: 1rem; padding: 0 .45rem; font-size: .75rem; color: var(--faint); }
pre { background: var(--card); border-radius: .6rem; padding: .8rem; font-size: .82rem; white-space: pre-wrap; }
summary { cursor: pointer; }
:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
"""


@dataclass(frozen=True)
class Answers:
    """What one run answered after its last session."""

    labels: Ints
    session_of_class: Ints
    predicted: Ints
    confidence: Floats  # empty where the run did not write it


def write(folder: Path, task: Task) -> Path:
    """Write the report of a finished run into its folder."""
    result = results.read(folder)
    config = json.loads((folder / "config.json").read_text())
    answers = [
        _answers(folder / run_name(seed, draw))
        for seed, draw in zip(result.seeds, result.draws, strict=True)
    ]
    path = folder / "report.html"
    write_bytes(
        path,
        page(
            result, config, answers, task.test.only(task.split.seen(len(task.split.sessions)))
        ).encode(),
    )
    return path


def _answers(run: Path) -> Answers:
    state = read_state(run / "predictions.safetensors")
    confidence = state.get("confidence", torch.empty(0))
    return Answers(
        state["labels"].numpy(),
        state["session_of_class"].numpy(),
        state["predictions"][""][-1].numpy(),
        confidence.double().numpy(),
    )


def page(
    result: RunResult, config: dict[str, Any], answers: Sequence[Answers], test: ImageSet
) -> str:
    """The whole page. `test` has the classes in the order in which they came."""
    heading = escape(f"{result.method} on {result.benchmark}")
    sections = [
        _header(result, heading),
        _sessions(result),
        _confusions(answers, test),
        _calibration(answers),
        _costs(result),
    ]
    sections.append(_repeat(result, config))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


# ---- its sections


def _header(result: RunResult, heading: str) -> str:
    runs = f"{result.runs} runs" if result.runs > 1 else "1 run"
    about = f"{tables.title(result)}; {runs}, recipe {result.recipe or 'of its own'}, split {result.split}"
    last: list[tuple[str, Iterable[float | None]]] = [
        ("after the last session", result.last),
        ("average", result.average),
    ]
    last.append(("performance drop", result.pd))
    if len(result.sessions) > 1:
        last += [
            ("base classes, last", [run[-1] for run in result.base]),
            ("new classes, last", [run[-1] for run in result.novel]),
        ]
        last.append(("harmonic mean, last", [run[-1] for run in result.harmonic]))
    cards = "".join(f"<div><b>{_mean(values)}</b>{escape(name)}</div>" for name, values in last)
    keeps = (
        f'<p class="faint">Keeps of old images: {escape(result.keeps)}.</p>' if result.keeps else ""
    )
    return f'<h1>{heading}</h1>\n<p class="faint">{escape(about)}; accuracy in percent.</p>\n{keeps}<div class="cards">{cards}</div>'


def _sessions(result: RunResult) -> str:
    table = tables.build([result])
    published = tables.published_rows([result])
    first, last = (float(np.mean([run[i] for run in result.accuracy])) for i in (0, -1))
    sizes = result.sessions
    told = (
        f"from {first:.1f} % of {sizes[0].classes} classes to {last:.1f} % of {sizes[-1].classes}"
    )
    parts = ["<h2>Session by session</h2>", _table(table)]
    curve = figures.run_figure(result, {Path(result.method).stem: result.accuracy}, published)
    parts.append(_figure(figures.to_svg(curve), f"Line chart of accuracy by session: {told}."))
    if len(sizes) > 1:
        base, novel = (_mean([run[-1] for run in rows]) for rows in (result.base, result.novel))
        lines = {"base": result.base, "new": result.novel, "harmonic mean": result.harmonic}
        alt = f"Line chart of accuracy on base and on new classes by session: {base} and {novel} percent after the last one."
        parts += ["<h2>Base against new classes</h2>", "<p>Both among all classes seen so far.</p>"]
        parts.append(_figure(figures.to_svg(figures.run_figure(result, lines)), alt))
    return "\n".join(parts)


def _table(table: tables.Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("method", *table.columns))
    rows = []
    for row in table.rows:
        cells = (
            f"<td>{cell.text}"
            + (f"<small>±{tables.number(cell.std)}</small>" if cell.std is not None else "")
            + "</td>"
            for cell in row.cells
        )
        rows.append(
            f'<tr class="{row.source}"><th scope="row">{escape(row.label)}</th>{"".join(cells)}</tr>'
        )
    notes = "".join(f'<p class="faint">{escape(note)}</p>' for note in table.notes)
    return (
        _scroll(
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>",
            "accuracy by session",
        )
        + notes
    )


def _confusions(answers: Sequence[Answers], test: ImageSet) -> str:
    """The pairs of classes that are mistaken most often, over all runs; images are those of the first run."""
    first, names = answers[0], test.class_names
    confusion = np.sum(
        [confusion_matrix(one.labels, one.predicted, len(names)) for one in answers], axis=0
    )
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    np.fill_diagonal(shares, 0)
    worst = [
        divmod(int(place), len(names))
        for place in np.argsort(-shares, axis=None, kind="stable")[:CONFUSIONS]
    ]
    parts = []
    for true, taken in worst:
        if not shares[true, taken]:
            break
        mistaken = np.flatnonzero((first.labels == true) & (first.predicted == taken))[:MISTAKEN]
        meant = np.flatnonzero(first.labels == taken)[:MEANT]
        one, other = (
            f"<b>{escape(names[c])}</b> {_badge(first.session_of_class[c])}" for c in (true, taken)
        )
        count = f"{confusion[true, taken]} of {confusion[true].sum()} images, {100 * shares[true, taken]:.0f} %"
        shown = "".join(
            _image(test, i, f"{names[true]}, taken for {names[taken]}") for i in mistaken
        )
        if len(mistaken) and len(meant):
            shown += "<span>taken for</span>"
        shown += "".join(_image(test, i, names[taken]) for i in meant)
        parts.append(
            f'<div class="pair">{one} taken for {other}: {count}<div class="images">{shown}</div></div>'
        )
    found = "\n".join(parts) or "<p>There was no mistake.</p>"
    return f'<h2>Worst confusions</h2>\n<p class="faint">After the last session, among all classes.</p>\n{found}'


def _badge(session: int) -> str:
    return f'<span class="badge">{"base" if session == 0 else f"session {session}"}</span>'


def _calibration(answers: Sequence[Answers]) -> str:
    given = [one for one in answers if len(one.confidence)]
    if not given:
        return ""
    confidence = np.concatenate([one.confidence for one in given])
    right = np.concatenate([one.predicted == one.labels for one in given])
    error = 100 * expected_calibration_error(torch.from_numpy(confidence), torch.from_numpy(right))
    sure, true = 100 * confidence.mean(), 100 * right.mean()
    told = f"{sure:.1f} % confident and {true:.1f} % right on average; expected calibration error {error:.1f} points"
    return (
        f"<h2>Calibration</h2>\n<p>After the last session: {told}. "
        "A confidence is the largest share of the softmax of the method's scores, as they are.</p>\n"
        + _figure(
            figures.to_svg(figures.reliability_figure(confidence, right.astype(np.float64))),
            f"Reliability diagram: {told}.",
        )
    )


def _costs(result: RunResult) -> str:
    stages = list(dict.fromkeys(stage for run in result.seconds for stage in run))
    rows = [(stage, f"{_mean([run.get(stage) for run in result.seconds])} s") for stage in stages]
    rows.append(("peak memory", f"{max(result.peak_memory_mb):,.0f} MB"))
    cells = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{value}</td></tr>' for name, value in rows
    )
    beside = result.machine.get("side_by_side", 1)
    machine = ", ".join(
        f"{key} {value}" for key, value in result.machine.items() if key != "side_by_side"
    )
    machine += f"; {beside} runs side by side" if beside > 1 else ""
    return f'<h2>Time and memory</h2>\n<p class="faint">{escape(machine)}</p>\n' + _scroll(
        f"<table><tbody>{cells}</tbody></table>", "seconds by stage and peak memory"
    )


def _repeat(result: RunResult, config: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, dict.fromkeys(result.seeds)))
    about = (
        f"seeds {seeds}; split {result.split}; commit {result.commit or 'unknown'}; {result.date}"
    )
    settings = json.dumps(config, indent=1, ensure_ascii=False)
    return (
        f'<h2>How to repeat it</h2>\n<pre>{escape(result.command)}</pre>\n<p class="faint">{escape(about)}</p>\n'
        f"<h2>Config</h2>\n<details><summary>All settings</summary><pre>{escape(settings)}</pre></details>"
    )


# ---- their parts


def _mean(values: Iterable[float | None]) -> str:
    mean, std = mean_std([np.nan if value is None else value for value in values])
    if np.isnan(mean):
        return "–"
    return tables.number(float(mean)) + (
        f" ± {tables.number(float(std))}" if not np.isnan(std) else ""
    )


def _scroll(content: str, label: str) -> str:
    """What may be wider than a phone scrolls in its own box, by keyboard too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{content}</div>'


def _figure(svg: str, alt: str) -> str:
    """A figure in the colours of the page."""
    for colour, name in COLOURS.items():
        svg = re.sub(re.escape(colour), f"var(--{name})", svg, flags=re.IGNORECASE)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
    return f"<figure>{svg}</figure>"


def _image(images: ImageSet, index: int, alt: str) -> str:
    """One image of a set, in the page itself."""
    image = Image.fromarray(images.image(int(index)).permute(1, 2, 0).cpu().numpy())
    tiny = max(image.size) <= TINY
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    data = io.BytesIO()
    kind, look = ("png", ' class="tiny"') if tiny else ("jpeg", "")
    image.save(data, kind)
    source = f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"
    return f'<img{look} src="{source}" alt="{escape(alt)}">'
