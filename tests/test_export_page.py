"""Run the snippets of docs/export.md as they stand, in order, with a small model."""

import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from fewmore.classifier.embedding import center_square
from fewmore.data.transform import Transform

PAGE = Path(__file__).resolve().parent.parent / "docs" / "export.md"
SNIPPETS = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_snippets_run(
    shell: Callable[[Sequence[str]], int],
    small_model: Path,
    photos: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxscript", reason="the packages of fewmore[export] are not installed")
    pytest.importorskip("onnxruntime", reason="the packages of fewmore[export] are not installed")
    monkeypatch.chdir(tmp_path)
    shutil.copy(small_model, "birds.fewmore")
    folder = photos("photos", {"robin": 3, "wren": 3})
    shutil.copy(folder / "robin" / "00.png", "unknown.jpg")
    for kind, text in SNIPPETS:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), {})
            continue
        words = shlex.split(text)
        if words[0] == "fewmore":
            assert shell(words) == 0, text
    out = capsys.readouterr().out
    assert "3 photos get the same answer as before" in out
    assert out.splitlines()[-1] in ("robin", "none of these")


def test_files_of_two_exports_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="the packages of fewmore[export] are not installed")
    (program,) = [text for _, text in SNIPPETS if "def prepare" in text]
    monkeypatch.chdir(tmp_path)
    folder = Path("birds-onnx")
    folder.mkdir()
    (folder / "classes.json").write_text('{"backbone.onnx": {"sha256": "of before"}}')
    (folder / "backbone.onnx").write_bytes(b"of now")
    with pytest.raises(RuntimeError, match=r"backbone\.onnx is being replaced"):
        exec(compile(program, str(PAGE), "exec"), {})


def save_odd_images(folder: Path) -> None:
    """Write images that are easily prepared in another way than fewmore does."""
    pixels = np.random.default_rng(0).integers(0, 256, (75, 98, 4), dtype=np.uint8)
    image = Image.fromarray(pixels)
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation
    image.save(folder / "transparent.png")
    image.convert("RGB").save(folder / "turned.jpg", exif=turned)
    image.convert("RGB").resize((700, 900)).save(folder / "large.jpg")
    image.convert("CMYK").save(folder / "cmyk.jpg")
    image.convert("P").save(folder / "palette.gif")
    image.convert("L").resize((20, 10)).save(folder / "small gray.png")
    Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 200).save(folder / "sixteen bit.png")


def test_images_are_prepared_for_onnx_as_for_pytorch(tmp_path: Path) -> None:
    (program,) = [text for _, text in SNIPPETS if "def prepare" in text]
    function = re.search(r"^def prepare.*?(?=^\S(?!ef ))", program, re.DOTALL | re.MULTILINE)
    assert function
    names: dict[str, Any] = {"np": np, "Image": Image, "ImageOps": ImageOps}
    exec(function[0], names)
    save_odd_images(tmp_path)
    for path in tmp_path.iterdir():
        transform = Transform(32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), resize=37)
        expected = center_square(path, path.name, transform).numpy()
        assert np.array_equal(names["prepare"](path, 37)[0], expected), path.name
