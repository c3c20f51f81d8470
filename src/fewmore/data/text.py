"""Read the text files of benchmarks."""

from pathlib import Path

from fewmore.errors import DataError


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not a text file ({error.reason}): remove it and fetch it again"
        ) from error
    return [line.strip() for line in lines if line.strip()]
