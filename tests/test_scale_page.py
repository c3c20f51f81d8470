"""Hold docs/scale.md to the program: its commands are known, and those on images run."""

import re
import shlex
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from fewmore import cli

parquet = pytest.importorskip("pyarrow.parquet")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "scale.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line, comments=True)
    for line in re.findall(r"^    (?:torchrun .*? -m )?(fewmore .*)", TEXT, re.M)
]
ON_IMAGES = [words for words in COMMANDS if words[1] in ("predict", "embed")]
ON_RAY = [words for words in ON_IMAGES if "ray" in words]
SHARDS = 100
Run = Callable[[list[str]], int]


class Bucket(MemoryFileSystem):
    """Stand for s3:// in memory."""

    protocol = "s3"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("s3://", "memory://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"s3:/{name}"


@pytest.fixture
def images(
    small_model: Path,
    photos: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Make the model, photos and shards of the page, and what is at s3://bucket."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    shutil.copy(small_model, "birds.fewmore")
    files = sorted(photos("photos", {"wren": 4}).rglob("*.png"))
    Path("shards").mkdir()
    for number in range(SHARDS):
        with tarfile.open(f"shards/birds-{number:03d}.tar", "w") as shard:
            shard.add(files[number % len(files)], "bird.png")
    monkeypatch.setitem(_registry, "s3", Bucket)
    for number, file in enumerate(files):
        Bucket().pipe(f"s3://bucket/birds/{number}.jpg", file.read_bytes())
    yield
    Bucket.store.clear()


@pytest.fixture
def run(shell: Callable[[list[str]], int]) -> Run:
    """Return a function that runs a command, and returns how many rows it writes to Parquet."""

    def run(words: list[str]) -> int:
        assert shell(words) == 0, words
        output = Path(words[words.index("-o") + 1])
        rows = parquet.read_table(output)
        output.unlink()
        assert rows["error"].null_count == len(rows)
        return len(rows)

    return run


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_known(words: list[str]) -> None:
    command = typer.main.get_command(cli.app).commands[words[1]]
    command.make_context(words[1], words[2:])


def test_commands_on_images_run(images: None, run: Run) -> None:
    here = [words for words in ON_IMAGES if words not in ON_RAY]
    assert [run(words) for words in here] == [4, SHARDS, 4, 4]


def test_the_loop_over_images_runs(images: None, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?embed_places.*?)```", TEXT.partition("## Images")[2], re.S)
    exec(compile(code, str(PAGE), "exec"), {})
    assert "s3://bucket/birds/3.jpg" in capsys.readouterr().out


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_commands_on_a_ray_cluster_run(images: None, run: Run) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray, which make soak installs")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        counts = [run(words) for words in ON_RAY if "s3://" not in " ".join(words)]
    finally:
        ray.shutdown()
    assert counts == [SHARDS]
