"""Check what `fewmore data` fetches, reports and finds missing."""

import hashlib
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fewmore.cli.data import app
from fewmore.data import download
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.data.sources import SOURCES, File, Source
from fewmore.errors import ImageError, MissingData, UnknownName


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("FEWMORE_DATA", raising=False)


def run(*arguments: str, code: int = 0) -> str:
    """Return the output of the command; errors of fewmore are raised."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code
    return result.output


def write_cifar(root: Path, each: int = 5) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for part, count in (("train", each), ("test", 1)):
        labels = np.repeat(np.arange(100), count)
        entry = {"data": np.zeros((len(labels), 3072), np.uint8), "fine_labels": labels.tolist()}
        (folder / part).write_bytes(pickle.dumps(entry))
    (folder / "meta").write_bytes(
        pickle.dumps({"fine_label_names": [f"class {i}" for i in range(100)]})
    )


def write_lists(root: Path) -> Path:
    folder = root / "index_list" / "cifar100"
    folder.mkdir(parents=True)
    for session in range(9):
        lines = range(300) if session == 0 else range(300 + 25 * (session - 1), 300 + 25 * session)
        (folder / f"session_{session + 1}.txt").write_text("\n".join(map(str, lines)))
    return folder


def write_folder(root: Path, classes: int = 5, each: int = 6) -> Path:
    random = np.random.default_rng(0)
    for label in range(classes):
        (root / f"c{label}").mkdir(parents=True)
        for index in range(each):
            Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(
                root / f"c{label}" / f"{index}.png"
            )
    return root


# get


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Replace the network by these URLs and contents; cifar100 is one list and an archive."""
    (tmp_path / "made" / "set").mkdir(parents=True)
    (tmp_path / "made" / "set" / "train").write_text("images")
    archive = Path(
        shutil.make_archive(str(tmp_path / "set"), "gztar", tmp_path / "made", "set")
    ).read_bytes()
    served = {"https://x/list": b"1\n2\n", "https://x/set.tar.gz": archive}
    files = (
        File(
            "https://x/set.tar.gz",
            "set.tar.gz",
            md5=hashlib.md5(archive).hexdigest(),
            unpacked="set",
        ),
        File("https://x/list", "index_list/list", sha256=hashlib.sha256(b"1\n2\n").hexdigest()),
    )
    monkeypatch.setitem(SOURCES, "cifar100", Source(files))
    monkeypatch.setitem(
        SOURCES, "miniimagenet", Source(files[1:], by_hand="Take the images from the shelf.")
    )

    def fetch(
        url: str, target: Path, sha256: str | None, md5: str | None, on_progress: download.Progress
    ) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(served[url])
        on_progress(len(served[url]), None)

    monkeypatch.setattr(download, "fetch", fetch)
    return served


def test_get_reports_files_and_folders(tmp_path: Path, published: dict[str, bytes]) -> None:
    root = tmp_path / "root"
    output = run("get", "cifar100", "--data-root", str(root))
    assert f"cifar100: 2 files, into {root}" in output
    assert "set: fetched from https://x/set.tar.gz" in output
    assert "index_list/list: fetched from https://x/list" in output
    assert "fewmore data check cifar100" in output
    assert (root / "set" / "train").read_text() == "images"
    assert (root / "index_list" / "list").read_bytes() == b"1\n2\n"


def test_get_keeps_existing_files(
    tmp_path: Path, published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path / "root"))
    run("get", "cifar100")
    (tmp_path / "root" / "index_list" / "list").write_text("my own")
    output = run("get", "cifar100")
    assert "set: there already" in output
    assert "index_list/list: there already, and not the published file" in output
    assert (tmp_path / "root" / "index_list" / "list").read_text() == "my own"


def test_get_prints_what_must_be_fetched_by_hand(
    tmp_path: Path, published: dict[str, bytes]
) -> None:
    output = run("get", "miniimagenet", "--data-root", str(tmp_path / "root"))
    assert "By hand: Take the images from the shelf." in output
    assert "index_list/list: fetched" in output


def test_the_text_on_miniimagenet_names_the_folder() -> None:
    assert "miniimagenet/images" in (SOURCES["miniimagenet"].by_hand or "")


@pytest.mark.parametrize("name", ["glyphs", "folder:somewhere"])
def test_get_of_a_benchmark_without_download(name: str) -> None:
    assert f"{name} needs no download" in run("get", name)


def test_get_of_an_unknown_name() -> None:
    with pytest.raises(UnknownName, match="no data set is named 'cifar': did you mean cifar100"):
        run("get", "cifar")


# check


def test_check_counts_and_finds_both_uses_ready(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    write_lists(tmp_path)
    output = run("check", "cifar100", "--data-root", str(tmp_path))
    assert "train: 500 images of 100 classes, 5 of each, 32 × 32 pixels" in output
    assert "test: 100 images of 100 classes, 1 of each" in output
    assert "official split: ready (60 base classes, then 8 sessions of 5-way 5-shot)" in output
    assert "other draws: ready" in output


def test_check_reports_what_is_missing_for_each_use(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    output = run("check", "cifar100", "--data-root", str(tmp_path))
    assert (
        "official split: not ready: there are no session lists; run `fewmore data get cifar100`"
        in output
    )
    assert "other draws: ready" in output
    (write_lists(tmp_path) / "session_4.txt").write_text("999")
    output = run("check", "cifar100", "--data-root", str(tmp_path))
    assert "official split: not ready: " in output
    assert "session_4.txt, line 1, names 999" in output


def test_check_fails_where_no_split_can_be_used(tmp_path: Path) -> None:
    write_cifar(tmp_path, each=3)
    output = run("check", "cifar100", "--data-root", str(tmp_path), code=1)
    assert (
        "other draws: not ready: class 'class 60' has 3 training images, and session 1 needs 5"
        in output
    )


def test_check_of_missing_data(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="run `fewmore data get cifar100`"):
        run("check", "cifar100", "--data-root", str(tmp_path))


def test_check_of_miniimagenet_with_only_the_shots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        BENCHMARKS,
        "miniimagenet",
        replace(BENCHMARKS["miniimagenet"], classes=2, base=1, way=1, shot=2),
    )
    (tmp_path / "miniimagenet" / "images").mkdir(parents=True)
    rows = {
        "train": [(f"{c}{i}.jpg", c) for c in "ab" for i in range(4)],
        "test": [(f"{c}{i}.jpg", c) for c in "ab" for i in (4, 5)],
    }
    for part, table in rows.items():
        (tmp_path / "miniimagenet" / f"{part}.csv").write_text(
            "filename,label\n" + "".join(f"{f},{c}\n" for f, c in table)
        )
        for file, _ in table:
            if file not in ("b2.jpg", "b3.jpg"):
                Image.new("RGB", (84, 84)).save(tmp_path / "miniimagenet" / "images" / file)
    (tmp_path / "index_list" / "mini_imagenet").mkdir(parents=True)
    for number, lines in enumerate((["a/a0.jpg", "a/a1.jpg"], ["b/b1.jpg", "b/b0.jpg"]), 1):
        (tmp_path / "index_list" / "mini_imagenet" / f"session_{number}.txt").write_text(
            "\n".join(lines)
        )
    output = run("check", "miniimagenet", "--data-root", str(tmp_path))
    assert "train: 6 images of 2 classes, 2 to 4 of each, 84 × 84 pixels" in output
    assert "official split: ready" in output
    assert (
        "other draws: not ready: 1 classes have only 2 images, and 2 are missing, such as" in output
    )


def test_check_of_a_folder(tmp_path: Path) -> None:
    output = run("check", f"folder:{write_folder(tmp_path)}")
    assert "train: 25 images of 5 classes, 5 of each, 6 × 6 pixels" in output
    assert "official split: none is published" in output
    assert "other draws: ready (3 base classes, then 1 session of 2-way 5-shot)" in output


def test_check_names_broken_images_of_train_and_test(tmp_path: Path) -> None:
    write_folder(tmp_path)
    images = sorted(tmp_path.glob("c1/*"))
    for path in images:
        path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(
        ImageError,
        match=r"^5 images cannot be read .*: .*; 1 image cannot be read .*: replace or remove them",
    ) as caught:
        run("check", f"folder:{tmp_path}")
    assert all(str(path) in str(caught.value) for path in images)


# list


def test_list_reports_what_is_on_this_machine(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    output = run("list", "--data-root", str(tmp_path))
    assert "cifar100: CIFAR-100 (Krizhevsky, 2009) (there)" in output
    assert "not there: fewmore data get cub200" in output
    assert f"Data root: {tmp_path}" in output


def test_help_names_the_commands() -> None:
    output = run("--help")
    assert all(command in output for command in ("get", "check", "list"))
