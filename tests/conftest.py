"""Small things to test with: images whose classes are easy to tell apart, a task made of them, and a quick recipe."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark, Task
from fewmore.data.images import ImageSet
from fewmore.data.sources import WEIGHTS, File
from fewmore.data.splits import draw
from fewmore.methods.base import Recipe
from fewmore.nn.backbones import build
from fewmore.training.learn_session import SessionConfig
from fewmore.training.pretrain import PretrainConfig

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TRANSFORM = Transform(8, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "pad", pad=1, flip=False)


def make_images(classes: int = 4, per_class: int = 6, size: int = 8, seed: int = 0) -> ImageSet:
    """Each class is a colour with a pattern, the same for every seed; an image of it adds noise, which the seed decides."""
    noise = np.random.default_rng(seed)
    images = []
    for number in range(classes):
        pattern = np.random.default_rng(number)
        colour = np.array([60.0, 190.0])[[number & 1, number >> 1 & 1, number >> 2 & 1]]
        coarse = colour[:, None, None] + pattern.normal(0, 30, (3, 4, 4))
        nearest = np.arange(size) * 4 // size
        whole = coarse[:, nearest][:, :, nearest] + noise.normal(0, 12, (per_class, 3, size, size))
        images.append(whole.round().clip(0, 255).astype(np.uint8))
    labels = torch.arange(classes).repeat_interleave(per_class)
    return ImageSet.of(
        np.concatenate(images), labels, [f"class {number}" for number in range(classes)]
    )


@pytest.fixture(scope="session")
def tiny_images() -> Callable[..., ImageSet]:
    """tiny_images(classes=4, per_class=6, size=8, seed=0) gives images, class by class."""
    return make_images


@pytest.fixture(scope="session")
def tiny_transform() -> Transform:
    """The transform of 8 × 8 images."""
    return TRANSFORM


@pytest.fixture(scope="session")
def tiny_task() -> Task:
    """Four base classes with 12 images each, then two sessions of 2-way 3-shot; five test images a class."""
    benchmark = Benchmark("tiny", "Colours", 8, 4, 2, 3, "resnet8", False, TRANSFORM)
    train = make_images(8, 12, seed=0)
    return Task(benchmark, train, make_images(8, 5, seed=1), draw(train, 4, 2, 3))


@pytest.fixture
def tiny_settings(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """What `--set` makes of any recipe so that every stage of every method is over at once, for the images of tiny_task."""
    monkeypatch.setattr("fewmore.training.pseudo_incremental.ROUND", 2)
    return (
        *(
            "pretrain.epochs=2",
            "pretrain.batch=24",
            "pretrain.milestones=1",
            "session.epochs=2",
            "session.batch=16",
        ),
        *("balanced.epochs=2", "exemplars.per_class=4", "topic.nodes=20", "topic.rounds=4"),
        *(
            "pseudo.base_way=2",
            "pseudo.new_way=2",
            "pseudo.base_query=2",
            "pseudo.new_query=2",
            "pseudo.episodes=4",
        ),
    )


@pytest.fixture(scope="session")
def tiny_recipe() -> Recipe:
    """Two epochs a stage, for the images of tiny_task."""
    return Recipe(
        "tiny",
        "resnet8",
        TRANSFORM,
        pretrain=PretrainConfig(epochs=2, batch=16, milestones=(1,)),
        session=SessionConfig(epochs=2, batch=16),
    )


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes as sub-folders with six PNG files each: four base classes and a session of 2-way 5-shot."""
    folder = tmp_path_factory.mktemp("images")
    images = make_images(6, 6, size=12)
    for index in range(len(images)):
        own = folder / images.class_names[images.labels[index]]
        own.mkdir(exist_ok=True)
        Image.fromarray(images.image(index).permute(1, 2, 0).numpy()).save(own / f"{index:02}.png")
    return folder


@pytest.fixture(scope="session")
def small_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weight file of resnet8, drawn from a seed."""
    path = tmp_path_factory.mktemp("data") / "weights" / "small.pth"
    path.parent.mkdir()
    torch.save(build("resnet8", 3).state_dict(), path)
    return path


@pytest.fixture
def small_pretrained(monkeypatch: pytest.MonkeyPatch, small_weights: Path) -> None:
    """A small backbone takes the place of the pretrained one, its weights found without a network."""
    digest = hashlib.sha256(small_weights.read_bytes()).hexdigest()
    monkeypatch.setitem(
        WEIGHTS, "resnet8", File("http://localhost:9/small.pth", "weights/small.pth", sha256=digest)
    )
    monkeypatch.setattr("fewmore.classifier.estimator.PRETRAINED", "resnet8")
    monkeypatch.setenv("FEWMORE_DATA", str(small_weights.parent.parent))


def draw_photos(folder: Path, counts: dict[str, int], size: int = 40) -> Path:
    """A folder of class folders; classes of the same name look alike, whatever the folder."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        pattern = np.random.default_rng(list(name.encode())).integers(0, 256, (4, 4, 3))
        for index in range(count):
            noise = np.random.default_rng(list(f"{folder.name}/{name}/{index}".encode())).normal(
                0, 12, (4, 4, 3)
            )
            image = Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8))
            image.resize((size + index % 3, size), Image.Resampling.NEAREST).save(
                folder / name / f"{index:02}.png"
            )
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """photos("birds", {"wren": 3, …}) draws images into a folder of class folders."""
    return lambda folder, counts, size=40: draw_photos(tmp_path / folder, counts, size)


@pytest.fixture(scope="session")
def small_model(small_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file that knows three birds, from photos("photos", {"robin": 5, "wren": 5, "jay": 4}). To be copied, not changed."""
    folder = tmp_path_factory.mktemp("model")
    counts = {"robin": 5, "wren": 5, "jay": 4}
    classifier = IncrementalClassifier("resnet8", small_weights, device="cpu").fit(
        draw_photos(folder / "photos", counts)
    )
    classifier.save(folder / "birds.fewmore")
    return folder / "birds.fewmore"


def _chromium_path() -> str:
    """Where Chromium is. Where it is not, CI and containers (root, apt-get) install Debian's package, and other machines skip."""
    if (
        found := shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    ):
        return found
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if shutil.which("apt-get") and (is_root or os.environ.get("CI")):
        import fcntl

        with (Path(tempfile.gettempdir()) / "fewmore-installs-chromium.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one of the test workers installs it, the others wait
            for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
                if shutil.which("chromium") is None:
                    line = [*([] if is_root else ["sudo", "-n"]), "apt-get", "-q", *command]
                    subprocess.run(
                        line,
                        stdout=subprocess.DEVNULL,
                        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                        timeout=300,
                    )
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    """A browser without a window. Not for the whole session: while it is open, asyncio.run() does not work in this thread."""
    from playwright.sync_api import sync_playwright

    path = _chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--use-fake-device-for-media-stream"]
        )
        yield browser
        browser.close()
