"""Append what happens in a run to metrics.jsonl, one JSON object a line."""

import json
from pathlib import Path
from typing import Any

from fewmore.io import write_bytes


class MetricsLog:
    """Log rounds and sessions once each, even if a resumed run repeats some of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text() if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]  # a kill may have cut the last line
        if complete != text:
            write_bytes(path, complete.encode())
        self.lines = [json.loads(line) for line in complete.splitlines()]
        self._logged = {self._key(line) for line in self.lines}

    def add(self, line: dict[str, Any]) -> bool:
        """Append a line unless its round or session is logged already; return whether it is new."""
        if self._key(line) in self._logged:
            return False
        self._logged.add(self._key(line))
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return True

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage of training; all sessions are one stage."""
        total: dict[str, float] = {}
        for line in self.lines:
            if "stage" in line:
                stage = "sessions" if line["stage"].startswith("session ") else line["stage"]
                total[stage] = round(total.get(stage, 0.0) + line["seconds"], 3)
        return total

    @staticmethod
    def _key(line: dict[str, Any]) -> tuple[Any, ...]:
        return (line.get("stage"), line.get("round"), line.get("session"))
