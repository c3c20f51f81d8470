"""Run the methods in examples/ under the protocol, and hold them to what the docs say of them.

The programs are run too; test_notebook.py executes the notebooks.
"""

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fewmore.methods import METHODS, find
from fewmore.research import protocol
from fewmore.training.runtime import Runtime

FOLDER = Path(__file__).resolve().parents[1] / "examples"
PUBLISHED = {  # after published methods
    "teen": "TEEN",
    "ridge": "Ridge",
    "protonet": "ProtoNet",
    "rotated_mixup": "RotatedMixup",
}
CLASSES = {**PUBLISHED, "own_loop": "OwnLoop"}


PROGRAMS = {"shapes", "service_client", "sort_photos"}


def test_every_example_is_listed_here():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(CLASSES) | PROGRAMS


def run_program(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300
    )


def test_photos_are_sorted(photos: Callable[..., Path], small_model: Path, tmp_path: Path):
    holiday = photos("photos", {"robin": 3, "wren": 2})  # the model was trained on these
    done = run_program(FOLDER / "sort_photos.py", small_model, holiday, tmp_path / "sorted")
    assert done.returncode == 0, done.stderr
    copied = [path for path in (tmp_path / "sorted").rglob("*") if path.is_file()]
    places = {line[6:]: int(line[:5]) for line in done.stdout.splitlines()}
    assert places == {
        place.name: len(list(place.iterdir())) for place in (tmp_path / "sorted").iterdir()
    }
    assert set(places) <= {"robin", "wren", "unsure", "none of these"}
    assert sum(places.values()) == 5 >= len(copied)


def test_a_program_says_what_is_wrong_with_a_model(tmp_path: Path):
    shutil.copy(FOLDER / "shapes.py", tmp_path / "no.fewmore")
    done = run_program(FOLDER / "sort_photos.py", tmp_path / "no.fewmore", tmp_path, tmp_path / "x")
    assert done.returncode == 2
    assert "no.fewmore" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(params=CLASSES)
def example(request) -> str:
    return request.param


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_example_after_a_paper_is_short_and_names_it(name):
    text = (FOLDER / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 60
    assert "https://arxiv.org/abs/" in text.split('"""')[1]


def test_an_example_has_its_name_and_settings(example):
    info = find(f"{FOLDER}/{example}.py:{CLASSES[example]}")
    assert info.name == (f"{example}_example" if example in METHODS else example)
    assert info.load().config_type.__module__ == info.load().__module__


def test_an_example_runs(example, tiny_task, small_recipe):
    name = f"{FOLDER}/{example}.py:{CLASSES[example]}"
    longer = ("pretrain.epochs=12", "pretrain.milestones=9")
    recipe = small_recipe("quick", tiny_task.benchmark, name, *longer)
    method = find(name).build(recipe, Runtime(), 0)
    outcome = protocol.run(method, tiny_task, Runtime())
    assert outcome.sessions == 3
    assert outcome.images_kept == [0, 0, 0]
    predictions, labels = outcome.predictions[""][-1], outcome.labels
    assert (predictions == labels).float().mean() > 0.5  # chance is 0.125


def test_teen_moves_new_means_towards_similar_base_classes(tiny_task, small_recipe):
    name = f"{FOLDER}/teen.py:TEEN"
    base, new, _ = (s.select_from(tiny_task.train).compact() for s in tiny_task.split.sessions)

    def prototypes(alpha: float) -> list[list[float]]:
        recipe = small_recipe("quick", tiny_task.benchmark, name, f"alpha={alpha}")
        method = find(name).build(recipe, Runtime(), 0)
        method.fit(base)
        method.learn(new)
        return method.network.classifier.prototypes.double().tolist()

    plain, moved = prototypes(0.0), prototypes(0.3)
    assert plain[:4] == moved[:4]
    for mean, calibrated in zip(plain[4:], moved[4:], strict=True):
        cosines = [sum(a * b for a, b in zip(mean, row, strict=True)) for row in plain[:4]]
        total = sum(math.exp(16 * c) for c in cosines)
        weights = [math.exp(16 * c) / total for c in cosines]
        mixed = [
            sum(w * row[i] for w, row in zip(weights, plain[:4], strict=True))
            for i in range(len(mean))
        ]
        length = math.hypot(*mixed)
        expected = [0.7 * m + 0.3 * x / length for m, x in zip(mean, mixed, strict=True)]
        assert calibrated == pytest.approx(expected, abs=1e-5)


def test_ridge_is_the_minimum_of_its_loss(tiny_task, small_recipe):
    """Check that the gradient of the weighted squared error and the penalty is zero."""
    name = f"{FOLDER}/ridge.py:Ridge"
    recipe = small_recipe("quick", tiny_task.benchmark, name, "width=20")
    method = find(name).build(recipe, Runtime(), 0)
    base = tiny_task.split.sessions[0].select_from(tiny_task.train).compact()
    method.fit(base)
    weights = method.scores_of(torch.eye(20)).double().requires_grad_()  # (20, classes)
    features = method.embed(base).double()
    targets = torch.nn.functional.one_hot(base.labels, 4).double()
    errors = (features @ weights - targets).square().sum(1) / 12  # 12 images a class
    (errors.sum() + weights.square().sum()).backward()
    assert weights.grad.abs().max() < 1e-4


def test_rotated_mixup_trains_on_mixed_and_rotated_images(tiny_task, small_recipe):
    """Check that its own training follows stage 1, and that its settings change what is learnt."""
    name = f"{FOLDER}/rotated_mixup.py:RotatedMixup"
    base = tiny_task.split.sessions[0].select_from(tiny_task.train).compact()

    def learnt(*settings: str) -> tuple[list[tuple[str, int]], torch.Tensor]:
        recipe = small_recipe("quick", tiny_task.benchmark, name, "more_epochs=2", *settings)
        reports = []
        method = find(name).build(recipe, Runtime(on_round=reports.append), 0)
        method.fit(base)
        return [(r.stage, r.rounds) for r in reports], method.network.classifier.prototypes

    stages, prototypes = learnt()
    assert stages == [("pretrain", 2)] * 2 + [("rotations", 2)] * 2
    assert prototypes.shape == (4, 64)
    for setting in ("rotations=2", "alpha=0.2"):
        assert not torch.equal(learnt(setting)[1], prototypes)


def test_own_loop_trains_its_own_network_and_reports_no_stage_1(tiny_task, small_recipe):
    name = f"{FOLDER}/own_loop.py:OwnLoop"
    recipe = small_recipe("quick", tiny_task.benchmark, name, "width=8", "epochs=3")
    base = tiny_task.split.sessions[0].select_from(tiny_task.train).compact()
    reports = []
    method = find(name).build(recipe, Runtime(on_round=reports.append), 0)
    before = {key: tensor.clone() for key, tensor in method.net.state_dict().items()}
    method.fit(base)
    assert reports == []
    assert not any(
        torch.equal(before[key], tensor) for key, tensor in method.net.named_parameters()
    )
    steps = method.net.state_dict()["1.num_batches_tracked"]
    assert steps == 3 * math.ceil(len(base) / 32)
