"""The command `fewmore check`, and the page of mistakes of `fewmore evaluate`."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

Photos = Callable[..., Path]
Fewmore = Callable[..., tuple[int, str, str]]

COUNTS = {"robin": 6, "wren": 5, "jay": 5}


@pytest.fixture
def flawed(photos: Photos) -> Path:
    """Write photos with a broken file, a copy in another class and a class of one photo."""
    folder = photos("photos", COUNTS, size=48)
    (folder / "wren" / "broken.png").write_bytes(b"")
    with Image.open(folder / "robin" / "00.png") as image:
        image.resize((60, 60)).save(folder / "jay" / "<copy>.jpg")
    (folder / "owl").mkdir()
    Image.effect_noise((48, 48), 90).save(folder / "owl" / "a.png")
    return folder


@pytest.mark.usefixtures("small_pretrained", "flawed")
def test_check_prints_what_to_do(fewmore: Fewmore) -> None:
    code, out, err = fewmore("check", "photos")
    assert code == 0
    assert err == "checking images …\n"
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0].startswith("18 photos of 4 classes: ")
    broken = lines.index("Cannot be read: 1")
    assert lines[broken + 1] == "Replace these files, or delete them."
    assert lines[broken + 2].startswith("  wren/broken.png  cannot be read as an image (")
    assert lines.index("One photo in two classes: 1") > broken
    assert "Too few photos: 1" in lines
    assert any(line.startswith("  owl  1 photo; 4 are the least") for line in lines)


@pytest.mark.usefixtures("small_pretrained", "flawed")
def test_check_prints_json_alone(fewmore: Fewmore) -> None:
    code, out, err = fewmore("check", "photos", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["images"] == 18
    assert result["classes"] == {"jay": 6, "owl": 1, "robin": 6, "wren": 5}
    (two,) = [one for one in result["findings"] if one["kind"] == "two classes"]
    assert "photos/jay/<copy>.jpg" in two["images"]
    assert "robin" in two["classes"]


@pytest.mark.usefixtures("small_pretrained", "flawed")
def test_check_writes_a_page_that_needs_nothing_else(fewmore: Fewmore) -> None:
    code, out, _ = fewmore("check", "photos", "--html", "check.html")
    assert code == 0
    assert out.endswith("page with the images: check.html\n")
    page = Path("check.html").read_text(encoding="utf-8")
    assert page.count("data:image/") >= 3
    assert "&lt;copy&gt;.jpg" in page
    assert "<copy>" not in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "no image" in page, "what stands for a broken file"


@pytest.mark.usefixtures("small_pretrained")
def test_strict_is_for_scripts(photos: Photos, fewmore: Fewmore) -> None:
    folder = photos("photos", COUNTS, size=48)
    for copy in json.loads(fewmore("check", "photos", "--json")[1])["findings"]:
        for image in copy["images"][1:]:
            Path(image).unlink()
    assert fewmore("check", "photos", "--strict")[0] == 0
    (folder / "wren" / "broken.png").write_bytes(b"")
    assert fewmore("check", "photos", "--strict")[0] == 1
    assert fewmore("check", "photos")[0] == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "nowhere is not there"),
        (["photos", "photos"], "two places were given, and photos is not a model file"),
        (["photos", "--html", "no/such/page.html"], "--html no/such/page.html: there is no folder"),
        (["photos", "--backbone", "mobilnet"], "no backbone with ImageNet weights is named"),
        (["photos", "--weights", "none.pth"], "there is no weight file none.pth"),
        (["photos/wren/00.png"], "photos/wren/00.png"),
    ],
)
@pytest.mark.usefixtures("small_pretrained")
def test_check_refuses_with_a_sentence(
    photos: Photos, fewmore: Fewmore, words: list[str], complaint: str
) -> None:
    photos("photos", COUNTS)
    code, out, err = fewmore("check", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"fewmore: {complaint}")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("small_pretrained")
def test_check_without_weights_says_where_to_put_them(
    photos: Photos, fewmore: Fewmore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos("photos", COUNTS)
    monkeypatch.setattr("fewmore.data.download.time.sleep", lambda seconds: None)
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path / "empty"))
    code, out, err = fewmore("check", "photos")
    assert (code, out) == (2, "")
    sentence = err.splitlines()[-1]
    assert sentence.startswith("fewmore: ")
    assert str(tmp_path / "empty" / "weights" / "small.pth") in sentence
    assert "from scratch" not in sentence


def test_check_a_model(small_model: Path, photos: Photos, fewmore: Fewmore, tmp_path: Path) -> None:
    shutil.copy(small_model, tmp_path / "birds.fewmore")
    code, out, err = fewmore("check", "birds.fewmore")
    assert (code, err) == (0, "")
    assert out.startswith("14 photos of 3 classes: ")
    photos("photos", {"robin": 5, "wren": 5, "jay": 4})
    code, out, _ = fewmore("check", "birds.fewmore", "photos", "--html", "model.html")
    assert code == 0
    assert "% of 14 learnt photos are closest to the mean of their class" in out
    assert Path("model.html").stat().st_size


def test_evaluate_writes_its_mistakes_as_images(
    small_model: Path, photos: Photos, fewmore: Fewmore, tmp_path: Path
) -> None:
    shutil.copy(small_model, tmp_path / "birds.fewmore")
    folder = photos("test", {"robin": 3, "wren": 3, "jay": 3})
    (folder / "robin" / "00.png").replace(folder / "wren" / "robin.png")
    code, out, _ = fewmore("evaluate", "birds.fewmore", "test", "--html", "mistakes.html")
    assert code == 0
    assert out.endswith("mistakes as images: mistakes.html\n")
    page = Path("mistakes.html").read_text(encoding="utf-8")
    assert "wren taken for robin" in page
    assert "wren/robin.png" in page
    assert re.search(r"predicted robin, \d+ % sure.*nearest class mean: robin", page)
    code, out, err = fewmore("evaluate", "birds.fewmore", "test", "--html", "no/such.html")
    assert (code, out) == (2, "")
    assert err.startswith("fewmore: --html no/such.html: there is no folder no")
    assert fewmore("evaluate", "birds.fewmore", "test", "--html", "mistakes.html")[0] == 0


def test_a_page_never_replaces_a_file_of_the_user(
    small_model: Path, photos: Photos, fewmore: Fewmore, tmp_path: Path
) -> None:
    shutil.copy(small_model, tmp_path / "birds.fewmore")
    photo = photos("photos", COUNTS) / "wren" / "00.png"
    own = Path("index.html")
    own.write_text("<title>my birds</title>")
    (tmp_path / "birds-confusion.png").write_bytes(photo.read_bytes())
    before = {file: file.read_bytes() for file in (Path("birds.fewmore"), photo, own)}
    for words, complaint in {
        ("check", "photos", "--html", photo): f"use --html {photo.with_suffix('.html')}",
        ("check", "photos", "--html", own): "index.html is there already",
        ("check", "photos", "--html", ""): "use --html new.html",
        ("evaluate", "birds.fewmore", "photos", "--html", "birds.fewmore"): "use --html birds.html",
        ("evaluate", "birds.fewmore", "photos", "--html", own): "index.html is there already",
        ("evaluate", "birds.fewmore", "photos", "--plot", photo): f"{photo} is there already",
        ("evaluate", "birds.fewmore", "photos"): "--plot birds-confusion.png is there already",
    }.items():
        code, out, err = fewmore(*words)
        assert (code, out) == (2, "")
        assert complaint in err
        assert err.count("\n") == 1, "nothing was measured"
    assert before == {file: file.read_bytes() for file in before}
