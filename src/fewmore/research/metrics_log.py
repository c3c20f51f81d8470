"""Append what happens in a run to metrics.jsonl, one JSON object a line."""

import json
from pathlib import Path
from typing import Any

from fewmore.io import write_bytes


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class MetricsLog:
    """Log rounds and sessions once each, even if a resumed run repeats some of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        # A kill may have cut the last line, and a power failure damaged several.
        whole = [line for line in text.splitlines() if _is_object(line)]
        complete = "".join(f"{line}\n" for line in whole)
        if complete != text:
            write_bytes(path, complete.encode())
        self.lines: list[dict[str, Any]] = list(map(json.loads, whole))
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
