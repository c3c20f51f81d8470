"""Share small images whose classes are easy to tell apart, tasks of them, and quick recipes."""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore import IncrementalClassifier, cli
from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark, Task
from fewmore.data.images import ImageSet
from fewmore.data.sources import WEIGHTS, File
from fewmore.methods import find
from fewmore.methods.base import Recipe
from fewmore.methods.recipe import override
from fewmore.nn.backbones import build
from fewmore.research.exam_world import TRANSFORM, make_images, make_recipe, make_task
from fewmore.training.learn_session import SessionConfig
from fewmore.training.pretrain import PretrainConfig

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session", autouse=True)
def feature_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the features of training images, and engines' graphs, out of the user's cache folder."""
    folder = tmp_path_factory.mktemp("features")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fewmore.classifier.feature_cache.cache_folder", lambda: folder)
        patch.setattr("fewmore.classifier.engines.graph.cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def tiny_images() -> Callable[..., ImageSet]:
    """Return the function (classes=4, per_class=6, size=8, seed=0) -> ImageSet."""
    return make_images


@pytest.fixture(scope="session")
def tiny_transform() -> Transform:
    """Return the transform of 8 × 8 images."""
    return TRANSFORM


@pytest.fixture(scope="session")
def tiny_task() -> Task:
    """Make a task of 4 base classes with 12 images each and two sessions of 2-way 3-shot.

    There are five test images a class.
    """
    return make_task()


@pytest.fixture
def small_recipe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """Return a function (name, benchmark, method, *settings) -> Recipe that trains in no time.

    It is for the images of tiny_task. Settings that the method lacks are left out.
    """
    monkeypatch.setattr("fewmore.training.pseudo_incremental.ROUND", 2)

    def small_recipe(name: str, benchmark: Benchmark, method: str, *settings: str) -> Recipe:
        return make_recipe(name, benchmark, method, settings)

    return small_recipe


@pytest.fixture(scope="session")
def tiny_recipe() -> Recipe:
    """Return the common settings of a recipe for tiny_task, with two epochs of stage 1."""
    return Recipe(
        "tiny", "resnet8", TRANSFORM, pretrain=PretrainConfig(epochs=2, batch=16, milestones=(1,))
    )


@pytest.fixture(scope="session")
def tiny_recipe_for(tiny_recipe: Recipe) -> Callable[[str], Recipe]:
    """Return a function that adds the settings of a method, with two epochs a session."""

    def recipe_for(method: str) -> Recipe:
        info = find(method)
        config = override(info.load().config_type(), info.overrides)
        if hasattr(config, "session"):
            config = override(config, {"session": SessionConfig(epochs=2, batch=16)})
        return replace(tiny_recipe, method=config)

    return recipe_for


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write six class folders of six PNG files: 4 base classes and a session of 2-way 5-shot."""
    folder = tmp_path_factory.mktemp("images")
    images = make_images(6, 6, size=12)
    for index in range(len(images)):
        class_folder = folder / images.class_names[images.labels[index]]
        class_folder.mkdir(exist_ok=True)
        pixels = images.image(index).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(class_folder / f"{index:02}.png")
    return folder


@pytest.fixture(scope="session")
def small_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a weight file of resnet8, initialized from a seed."""
    path = tmp_path_factory.mktemp("data") / "weights" / "small.pth"
    path.parent.mkdir()
    torch.save(build("resnet8", 3).state_dict(), path)
    return path


@pytest.fixture
def small_pretrained(monkeypatch: pytest.MonkeyPatch, small_weights: Path) -> None:
    """Replace the pretrained backbone by a small one, whose weights need no network."""
    digest = hashlib.sha256(small_weights.read_bytes()).hexdigest()
    monkeypatch.setitem(
        WEIGHTS, "resnet8", File("http://localhost:9/small.pth", "weights/small.pth", sha256=digest)
    )
    monkeypatch.setattr("fewmore.classifier.estimator.DEFAULT_BACKBONE", "resnet8")
    monkeypatch.setenv("FEWMORE_DATA", str(small_weights.parent.parent))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[object]], int]:
    """Return a function that runs a command, given by its words, and returns its exit code."""

    def shell(words: Sequence[object]) -> int:
        monkeypatch.setattr(sys, "argv", list(map(str, words)))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code or 0
        assert isinstance(code, int), code
        return code

    return shell


def write_photos(folder: Path, counts: dict[str, int], size: int = 40) -> Path:
    """Write a folder of class folders; classes of the same name look alike in every folder."""
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
    """Return a function: photos("birds", {"wren": 3, …}) writes a folder of class folders."""
    return lambda folder, counts, size=40: write_photos(tmp_path / folder, counts, size)


@pytest.fixture(scope="session")
def small_model(small_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model file of photos("photos", {"robin": 5, "wren": 5, "jay": 4}).

    Tests copy it and do not change it.
    """
    folder = tmp_path_factory.mktemp("model")
    counts = {"robin": 5, "wren": 5, "jay": 4}
    classifier = IncrementalClassifier("resnet8", small_weights, device="cpu").fit(
        write_photos(folder / "photos", counts)
    )
    classifier.save(folder / "birds.fewmore")
    return folder / "birds.fewmore"


def _chromium_path() -> str:
    """Return the path of Chromium; tests install nothing, and skip where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("needs Chromium: apt-get install chromium (.ci/run does)")


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    """Open a browser without a window.

    Not for the whole session: while it is open, asyncio.run() does not work in this thread.
    """
    from playwright.sync_api import sync_playwright

    path = _chromium_path()
    with sync_playwright() as playwright:
        names = "--host-resolver-rules=MAP *.example 127.0.0.1"
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--use-fake-device-for-media-stream", names]
        )
        yield browser
        browser.close()
