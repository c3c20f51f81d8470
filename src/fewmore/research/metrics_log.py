"""Append what happens in a run to metrics.jsonl, one JSON object a line."""

import json
from pathlib import Path
from typing import Any

from fewmore.io import write_bytes


def _parse(line: str) -> dict[str, Any] | None:
    """Return the JSON object of a line; None if it is damaged."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


class MetricsLog:
    """Log rounds and sessions once each, even if a resumed run repeats some of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        # A kill may have cut the last line, and a power failure damaged several.
        parsed = [(line, _parse(line)) for line in text.splitlines()]
        complete = "".join(f"{line}\n" for line, entry in parsed if entry is not None)
        if complete != text:
            write_bytes(path, complete.encode())
        self.lines = [entry for _, entry in parsed if entry is not None]
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
