"""Write what `fewmore check` finds of planted errors, from results/bench-check-cpu.json."""

from sections import recorded
from sections.markdown import paragraph

SWAPPED = "of 20 swapped labels"
COPIES = "of 10 copies"


def planted() -> str:
    """Write the measurement in two sentences."""
    path = recorded.RESULTS / "bench-check-cpu.json"
    command, *others = recorded.read_benchmark(path)["rows"]
    found = [row[SWAPPED] for row in others]
    false = [row["false alarms"] for row in others]
    text = (
        "How far to trust it: with 20 photos in wrong classes and 10 copies planted into 1,000 "
        f"photos of birds, it found {command[SWAPPED]} of the 20 and {command[COPIES]} of the 10, "
        f"with {command['false alarms']} false alarms. Labels swapped in {len(others)} other ways, "
        f"in folders of 20 to 100 classes: {min(found)} to {max(found)} of 20, with {min(false)} "
        f"to {max(false)} false alarms ([table](performance.md#what-check-finds))."
    )
    return paragraph(text) + "\n"
