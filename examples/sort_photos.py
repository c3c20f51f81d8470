"""Sort a folder of photos by a model: python sort_photos.py birds.fewmore holiday sorted

A typed program: `mypy --strict` accepts it, and `make test` checks that.
"""

import shutil
import sys
from pathlib import Path

from typing_extensions import assert_type

from fewmore import FewmoreError, IncrementalClassifier, Prediction, load

SURE = 0.8


def place_of(prediction: Prediction) -> str:
    """Return the name of the folder that an image belongs into."""
    if not prediction.known:
        return "none of these"
    return prediction.names[0] if prediction.confidences[0] >= SURE else "unsure"


def sort(classifier: IncrementalClassifier, photos: Path, target: Path) -> dict[str, int]:
    """Copy each photo into the folder of its class, and return how many went where."""
    paths = sorted(path for path in photos.rglob("*") if path.is_file())
    predictions = classifier.predict([str(path) for path in paths], top=1)
    assert_type(predictions, list[Prediction])
    counts: dict[str, int] = {}
    for path, prediction in zip(paths, predictions, strict=True):
        place = place_of(prediction)
        (target / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / place)
        counts[place] = counts.get(place, 0) + 1
    return counts


def main() -> int:
    """Sort, or say in a sentence why that cannot be done."""
    model, photos, target = map(Path, sys.argv[1:4])
    try:
        classifier = load(model)
        assert_type(classifier.names, list[str])
        for place, count in sort(classifier, photos, target).items():
            print(f"{count:5} {place}")
    except FewmoreError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
