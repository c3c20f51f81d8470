"""Write the rounds and sessions of a run into metrics.csv, for a spreadsheet or pandas."""

import csv
from collections.abc import Mapping

from fewmore.research.loggers.base import Logger, RunFacts

COLUMNS = ("stage", "step", "loss", "lr", "seconds", "accuracy", "base", "novel", "harmonic")


class CsvLogger(Logger):
    """Append a row a round and a row a session; a cell is empty where a row has no such number."""

    def __init__(self, facts: RunFacts) -> None:
        path = facts.folder / "metrics.csv"
        is_new = not path.exists() or path.stat().st_size == 0
        self.file = path.open("a", newline="", encoding="utf-8")
        self.writer = csv.DictWriter(self.file, COLUMNS, extrasaction="ignore")
        if is_new:
            self.writer.writeheader()

    def log(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Append a row, and make it readable at once."""
        self.writer.writerow({"stage": group, "step": step, **values})
        self.file.flush()

    def close(self, failed: bool) -> None:
        """Close the file."""
        self.file.close()
