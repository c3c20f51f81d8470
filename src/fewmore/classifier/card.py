"""Write the model card of a classifier: Markdown below the front matter that the Hub reads."""

import json
import re
from typing import Any

from fewmore.classifier.text import NONE_OF_THESE, count_noun

MAX_LISTED = 200  # classes

USE = """\
from fewmore import IncrementalClassifier  # pip install 'fewmore[hub]'

model = IncrementalClassifier.from_pretrained({name})
(prediction,) = model.predict("photo.jpg", top=3)
print(prediction.names[0] if prediction.known else "none of these", prediction.confidences[0])
"""


def model_card(info: dict[str, Any], name: str, license: str | None = None) -> str:
    """Return a model card.

    Args:
        info: what `IncrementalClassifier.info` returns.
        name: of the repository on the Hub, such as user/birds, or of a folder.
        license: of the model, as the Hub abbreviates it: apache-2.0, cc-by-4.0, …
    """
    title = name.rsplit("/", 1)[-1]
    classes = info["classes"]
    images = count_noun(info["images"], "image")
    terms = "It comes without a stated license: ask whoever made it."
    return "\n".join(
        [
            *_front_matter(info, title, license),
            f"# {_escape(title)}",
            "",
            f"An image classifier of {count_noun(len(classes), 'class')}, learnt from {images}. "
            "It can be taught more classes from a few images each, without forgetting these.",
            "",
            "## How to use it",
            "",
            "```python",
            USE.format(name=json.dumps(name, ensure_ascii=False)) + "```",
            "",
            'A new class: `model.learn({"okapi": ["a.jpg", "b.jpg", "c.jpg"]})`, '
            'then `model.save_pretrained("folder")`.',
            "",
            "## How good it is",
            "",
            *_quality(info),
            "",
            "## Classes",
            "",
            *_class_table(classes),
            "",
            "## How it was made",
            "",
            *_origin(info),
            "",
            "## License",
            "",
            terms if license is None else license,
            "",
        ]
    )


def _front_matter(info: dict[str, Any], title: str, license: str | None) -> list[str]:
    """Return the lines of the YAML; a text in JSON is one in YAML too."""
    accuracy = info["calibration"]["accuracy"]
    measured: list[str] = []
    if accuracy is not None:
        measured = [
            "metrics:",
            "- accuracy",
            "model-index:",
            f"- name: {json.dumps(title, ensure_ascii=False)}",
            "  results:",
            "  - task:",
            "      type: image-classification",
            "    dataset:",
            "      name: held-out images of the training",
            "      type: held-out",
            "    metrics:",
            "    - type: accuracy",
            f"      value: {accuracy:.4f}",
        ]
    return [
        "---",
        "library_name: fewmore",
        "pipeline_tag: image-classification",
        *([] if license is None else [f"license: {json.dumps(license)}"]),
        "tags:",
        "- few-shot-learning",
        "- class-incremental-learning",
        *measured,
        "---",
        "",
    ]


def _quality(info: dict[str, Any]) -> list[str]:
    calibration = info["calibration"]
    training, *changes = info["history"]
    if calibration["accuracy"] is None:
        return [
            "Nothing was measured: the training had too few images to hold some out. Confidences "
            f"are not calibrated, and no image is called '{NONE_OF_THESE}'."
        ]
    lines = [
        f"- Accuracy: {100 * calibration['accuracy']:.1f} % of "
        f"{count_noun(calibration['held_out'], 'held-out image')} of the "
        f"{count_noun(len(training['classes']), 'class')} of the training, "
        f"measured then ({training['when']})."
    ]
    if calibration["ece_after"] is not None:
        lines.append(
            "- Confidences are calibrated: they differ from the accuracy by "
            f"{100 * calibration['ece_after']:.1f} % (expected calibration error, held-out images)."
        )
    if calibration["auroc"] is not None:
        lines.append(
            f"- '{NONE_OF_THESE.capitalize()}' tells held-out images of these classes from those "
            f"of classes that were left out with an AUROC of {calibration['auroc']:.3f}."
        )
    if changes:
        lines.append(
            f"- Since then there {'was' if len(changes) == 1 else 'were'} "
            f"{count_noun(len(changes), 'change')} of the classes, after which nothing was "
            "measured: `fewmore evaluate` does."
        )
    return lines


def _class_table(classes: dict[str, int]) -> list[str]:
    rows = [f"| {_escape(name)} | {count:,} |" for name, count in classes.items()]
    more = len(rows) - MAX_LISTED
    return [
        "| Class | Images |",
        "| --- | ---: |",
        *rows[:MAX_LISTED],
        *(["", f"And {more:,} more."] if more > 0 else []),
    ]


def _origin(info: dict[str, Any]) -> list[str]:
    origin = info["origin"]
    side = info["image size"]
    return [
        f"Features of images of {side} × {side} pixels are computed by {info['backbone']} "
        f"(weights: {origin.get('weights', 'unknown')}). Trained with fewmore "
        f"{origin.get('fewmore', '')} on {origin.get('when', 'a day unknown')}.",
        "",
        *(f"- {_escape(note)}" for note in info["notes"]),
    ]


def _escape(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)
