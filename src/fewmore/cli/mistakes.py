"""Write the page of `fewmore evaluate` with its mistakes as images."""

from pathlib import Path
from typing import TYPE_CHECKING

from fewmore.classifier.text import count_noun

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.results import Evaluation, Mistake
    from fewmore.research.reporting.image_page import Card, Shown

MAX_PAIRS = 40  # of a class and the one that it is taken for
MAX_IMAGES = 24  # shown of a pair


def write_mistakes(
    path: Path, evaluation: "Evaluation", classifier: "IncrementalClassifier", photos: Path
) -> None:
    """Write a section for each pair of a right and a predicted class, the most frequent first."""
    from fewmore.research.reporting.image_page import Section, write_page

    pairs: dict[tuple[str, str], list[Mistake]] = {}
    for mistake in evaluation.mistakes:
        pairs.setdefault((mistake.name, mistake.prediction.names[0]), []).append(mistake)
    examples = _examples(photos, evaluation)
    totals = dict(zip(evaluation.classes, evaluation.confusion.sum(1).tolist(), strict=True))
    sections = []
    for (name, predicted), mistakes in sorted(pairs.items(), key=lambda item: -len(item[1])):
        compared = [examples[one] for one in (predicted, name) if one in examples]
        sections.append(
            Section(
                f"{name} taken for {predicted}",
                f"{len(mistakes)} of {count_noun(totals[name], 'image')}",
                _cards(mistakes[:MAX_IMAGES], classifier, compared, photos),
            )
        )
        if len(sections) == MAX_PAIRS:
            break
    summary = (
        f"{100 * evaluation.accuracy:.1f} % of {count_noun(evaluation.images, 'image')} are right; "
        f"{count_noun(len(evaluation.mistakes), 'mistake')}, between "
        f"{count_noun(len(pairs), 'pair')} of classes"
    )
    write_page(path, f"Mistakes in {photos}", [summary], sections)


def _cards(
    mistakes: list["Mistake"],
    classifier: "IncrementalClassifier",
    compared: list["Shown"],
    photos: Path,
) -> list["Card"]:
    from fewmore.cli.image_paths import seen_from
    from fewmore.research.reporting.image_page import Card, Shown

    features = classifier.embed([mistake.image for mistake in mistakes])
    nearest = classifier.scorer.similarity(features).argmax(1).tolist()
    cards = []
    for mistake, position in zip(mistakes, nearest, strict=True):
        prediction = mistake.prediction
        text = f"predicted {prediction.names[0]}, {100 * prediction.confidences[0]:.0f} % sure"
        if not prediction.known:
            text += ", but rejected as none of these"
        text += f"; nearest class mean: {classifier.names[position]}"
        shown = Shown(mistake.image, seen_from(photos, mistake.image))
        cards.append(Card(text, [shown, *compared]))
    return cards


def _examples(photos: Path, evaluation: "Evaluation") -> dict[str, "Shown"]:
    """Return an image of each class that was predicted right."""
    from fewmore.classifier.inputs import collect_images
    from fewmore.research.reporting.image_page import examples_of

    mistaken = {mistake.image for mistake in evaluation.mistakes}
    images = collect_images(photos)
    return examples_of(images, {i for i, title in enumerate(images.titles) if title in mistaken})
