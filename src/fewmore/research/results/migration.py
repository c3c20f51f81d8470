"""Translate results written by earlier versions, also of when the project was called cecil."""

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
# Settings of these methods had the method's name before them.
PREFIXES = ("topic.", "lucir.", "deepemd.")


def migrate(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a result's JSON object in today's words; a current one comes back as it is."""
    if raw.get("schema") == 1:
        raw = {**raw, "all_settings": {}}
    command = raw.get("command")
    if not isinstance(command, str) or not command.startswith(OLD_COMMAND):
        return raw
    migrated = {**raw, "command": NEW_COMMAND + command.removeprefix(OLD_COMMAND)}
    for prefix in PREFIXES:
        migrated["command"] = migrated["command"].replace(f" --set {prefix}", " --set ")
    if isinstance(raw.get("settings"), dict):
        migrated["settings"] = {
            _without_prefix(name): value for name, value in raw["settings"].items()
        }
    if isinstance(raw.get("extra"), dict):
        migrated["extra"] = {EXTRA.get(name, name): rows for name, rows in raw["extra"].items()}
    if isinstance(raw.get("keeps"), str):
        migrated["keeps"] = KEEPS.get(raw["keeps"], raw["keeps"])
    return migrated


def _without_prefix(setting: str) -> str:
    for prefix in PREFIXES:
        setting = setting.removeprefix(prefix)
    return setting
