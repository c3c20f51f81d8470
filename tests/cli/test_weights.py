"""Test where a run looks for the weights that its backbone starts from."""

import shutil
from pathlib import Path

import pytest

from fewmore.errors import DownloadError
from fewmore.methods import network

SMALL = (
    *("--device", "cpu", "-m", "decoupled-cosine", "--set", "backbone=resnet8"),
    *("--set", "transform.size=8", "--set", "transform.resize=9", "--set", "pretrain.batch=10"),
)


@pytest.fixture
def elsewhere(small_pretrained, small_weights, tmp_path, monkeypatch) -> Path:
    """Return a data root that has the weights, while the usual one has not."""
    (tmp_path / "elsewhere" / "weights").mkdir(parents=True)
    shutil.copy(small_weights, tmp_path / "elsewhere" / "weights")
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr("fewmore.data.download.time.sleep", lambda seconds: None)
    return tmp_path / "elsewhere"


def test_imagenet_weights_are_looked_for_in_the_data_root(fewmore, tiny_folder, elsewhere):
    command = ("run", f"folder:{tiny_folder}", *SMALL, "--set", "weights=imagenet")
    settings = ("--set", "pretrain.epochs=1")
    code, _, err = fewmore(*command, *settings, "--data-root", elsewhere)
    assert (code, err) == (0, "")
    code, _, err = fewmore(*command, *settings)
    assert code == 2
    place = elsewhere.parent / "empty"
    assert f"weights of resnet8 are not at {place / 'weights' / 'small.pth'}: http" in err
    assert f"or run `fewmore data get resnet8 --data-root {place}`" in err
    assert "or give a file with --set weights=FILE" in err
    assert err.count("\n") == 1


def test_tune_looks_for_weights_in_the_data_root(fewmore, tiny_folder, elsewhere):
    command = ("tune", f"folder:{tiny_folder}", *SMALL, "--set", "weights=imagenet")
    code, out, err = fewmore(*command, "--grid", "pretrain.epochs=1,2", "--data-root", elsewhere)
    assert (code, err) == (0, ""), out


def test_a_weight_file_without_the_final_layer(fewmore, tiny_folder, small_weights, monkeypatch):
    """Check that a file serves as it is, and that nothing is looked for elsewhere."""

    def refuse(*_: object) -> Path:
        raise DownloadError("nothing is to be downloaded")

    monkeypatch.setattr(network, "pretrained_weights", refuse)
    command = ("run", f"folder:{tiny_folder}", *SMALL, "--set", "pretrain.epochs=1")
    code, _, err = fewmore(*command, "--set", f"weights={small_weights}")
    assert (code, err) == (0, "")
    code, _, err = fewmore(*command, "--set", "weights=imagenet")
    assert code == 2
    assert "nothing is to be downloaded" in err
