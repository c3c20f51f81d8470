"""Define `fewmore check`: which photos hurt, and which classes need more."""

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.classifier.text import count_noun
from fewmore.cli.image_paths import seen_from
from fewmore.cli.model_options import Device, Json
from fewmore.cli.output_files import check_page
from fewmore.cli.terminal import interrupt_hint, plain, stages
from fewmore.errors import ConfigError

if TYPE_CHECKING:  # torch and rich are imported when a command runs
    from rich.console import Console

    from fewmore.classifier.checking import CheckResult, Finding
    from fewmore.research.reporting.image_page import Card, Shown

MAX_ROWS = 20  # printed of each kind of findings
MAX_IMAGES = 6  # shown with a finding


def check(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="PHOTOS|MODEL",
            help="A folder with one sub-folder a class, a CSV or JSONL file with the columns path "
            "and label, or a model file.",
            show_default=False,
        ),
    ],
    photos: Annotated[
        Path | None,
        typer.Argument(help="Photos of the model's classes, learnt or not.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write one page with the images, such as check.html.", show_default=False
        ),
    ] = None,
    json: Json = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if anything is found.")
    ] = False,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The network that computes features, without a model.",
            show_default="mobilenet_v2",
        ),
    ] = None,
    weights: Annotated[str, typer.Option(help="imagenet, or the path of a weight file.")] = (
        "imagenet"
    ),
    device: Device = "auto",
) -> None:
    """Find photos that hurt and classes that need more, before training or in a model.

    Before training: broken files, copies (re-saved or resized ones too), photos that are probably
    in the wrong class, tiny and blurred ones, classes with too few. With a model and photos also
    the classes that are confused, and how much one more photo of each would help.

    Example: fewmore check photos --html check.html

    Example: fewmore check birds.fewmore photos
    """
    from fewmore.classifier.checking import check_folder, check_model
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.data.manifests import is_manifest

    is_model = place.is_file() and not is_manifest(place)
    if photos is not None and not is_model:
        raise ConfigError(
            f"two places were given, and {place} is not a model file: give a model file first"
        )
    if html is not None:
        check_page(html)
    with (
        interrupt_hint("stopped: nothing was checked"),
        stages(plain(stderr=True), quiet=json) as progress,
    ):
        if is_model:
            result = check_model(IncrementalClassifier.load(place, device), photos, progress)
        else:
            classifier = IncrementalClassifier(backbone, weights, device=device)
            result = check_folder(place, classifier, progress)
    checked = photos or place
    if json:
        typer.echo(json_format.dumps(result.to_json(), indent=1, ensure_ascii=False))
    else:
        _print(plain(), result, checked)
    if html is not None:
        _write_page(html, result, checked)
        if not json:
            plain().print(f"page with the images: {html}")
    if strict and result.findings:
        raise typer.Exit(1)


def _summary(result: "CheckResult") -> str:
    photos = count_noun(result.images, "photo")
    found = count_noun(len(result.findings), "finding") if result.findings else "nothing to mend"
    return f"{photos} of {count_noun(len(result.class_counts), 'class')}: {found}"


def _by_kind(result: "CheckResult") -> list[tuple[str, list["Finding"]]]:
    kinds = dict.fromkeys(finding.kind for finding in result.findings)
    return [(kind, result.of_kind(kind)) for kind in kinds]


def _print(out: "Console", result: "CheckResult", checked: Path) -> None:
    """Print a table a kind of findings, the most important kind first."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from fewmore.classifier.checking.findings import KINDS

    out.print(_summary(result))
    for note in result.notes:
        out.print(f"note: {note}")
    for kind, findings in _by_kind(result):
        out.print(f"\n{KINDS[kind].title}: {len(findings):,}", style="bold")
        out.print(KINDS[kind].advice)
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for finding in findings[:MAX_ROWS]:
            message = Text(finding.message + _curve(finding))
            if kind == "confused":
                table.add_row(message)
            else:
                subjects = [
                    seen_from(checked, image) for image in finding.images
                ] or finding.classes
                table.add_row(Text("\n".join(subjects)), message)
        out.print(Padding(table, (0, 0, 0, 2)))
        if len(findings) > MAX_ROWS:
            out.print(f"  and {len(findings) - MAX_ROWS:,} more: --html or --json shows all")


def _curve(finding: "Finding") -> str:
    """Format the learning curve of a class, if the finding has one."""
    curve: dict[str, float] = finding.details.get("curve", {})
    points = ", ".join(f"{shots}: {100 * share:.0f} %" for shots, share in curve.items())
    return f"; right by number of photos: {points}" if points else ""


def _write_page(path: Path, result: "CheckResult", checked: Path) -> None:
    from fewmore.classifier.checking.findings import KINDS
    from fewmore.research.reporting.image_page import Section, write_page

    examples = _examples(result)
    sections = [
        Section(
            KINDS[kind].title,
            KINDS[kind].advice,
            [_card(finding, result, checked, examples) for finding in findings],
        )
        for kind, findings in _by_kind(result)
    ]
    write_page(path, f"Check of {checked}", [_summary(result), *result.notes], sections)


def _examples(result: "CheckResult") -> dict[str, "Shown"]:
    """Return an image of each class that no finding names, to compare with."""
    from fewmore.research.reporting.image_page import examples_of

    if result.source is None:
        return {}
    named = {position for finding in result.findings for position in finding.positions}
    return examples_of(result.source, named)


def _card(
    finding: "Finding", result: "CheckResult", checked: Path, examples: dict[str, "Shown"]
) -> "Card":
    from fewmore.research.reporting.image_page import Card, Shown

    images: list[Shown] = []
    if result.source is not None:
        images = [
            Shown(result.source.images[position], seen_from(checked, title))
            for position, title in zip(finding.positions, finding.images, strict=True)
        ][:MAX_IMAGES]
    compared: Sequence[str] = ()
    if finding.kind == "mislabelled":
        compared = (finding.details["looks_like"], *finding.classes)
    elif finding.kind in ("confused", "two classes", "pulls away"):
        compared = finding.classes
    images += [examples[name] for name in compared if name in examples]
    curve: dict[str, float] = finding.details.get("curve", {})
    title = "" if images else ", ".join(finding.classes)
    return Card(finding.message, images, title, list(curve.items()))
