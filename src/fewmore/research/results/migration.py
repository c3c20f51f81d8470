"""Translate results written before the first release, when the project was called cecil."""

from typing import Any

OLD_COMMAND = "cecil "
NEW_COMMAND = "fewmore "
# Images were called pictures.
EXTRA = {"pictures_kept": "images_kept"}
KEEPS = {
    "a few pictures a class": "a few images a class",
    "one picture a node": "one image a node",
    "every picture": "every image",
}


def migrate(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a result's JSON object in today's words; a current one comes back unchanged."""
    migrated = dict(raw)
    command = raw.get("command")
    if isinstance(command, str) and command.startswith(OLD_COMMAND):
        migrated["command"] = NEW_COMMAND + command.removeprefix(OLD_COMMAND)
    extra = raw.get("extra")
    if isinstance(extra, dict):
        migrated["extra"] = {EXTRA.get(name, name): series for name, series in extra.items()}
    keeps = raw.get("keeps")
    if isinstance(keeps, str):
        migrated["keeps"] = KEEPS.get(keeps, keeps)
    return migrated
