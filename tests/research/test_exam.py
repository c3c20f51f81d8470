"""Check that the exam finds what is wrong with a method, and that the command says it."""

import json
import sys
from pathlib import Path

import pytest
import torch

from fewmore.research.exam import examine
from fewmore.research.exam_checks import CHECKS
from fewmore.research.exam_world import make_case

HEAD = """
import torch
from fewmore.methods.decoupled import Config, Decoupled
from fewmore.methods.base import Method


class Mine(Decoupled):
"""
# What is wrong with a method: the check that finds it, and words of its sentence.
WRONG = {
    "    def state(self):\n        return {'sessions': 1}": ("not-fitted", "state before fit"),
    "    def scores_of(self, f):\n        return super().scores_of(f)[:, :4]": (
        "scores-cover-classes",
        "shape (40, 4), not (40, 6)",
    ),
    "    def scores(self, i):\n        return super().scores(i) + 1": (
        "other-scores",
        "differs from scores(images)",
    ),
    "    def scores(self, i):\n        self.sessions += 1\n        return super().scores(i)": (
        "scoring-changes-nothing",
        "/sessions",
    ),
    "    def scores_of(self, f):\n        return super().scores_of(f - f.mean(0))": (
        "batch-independence",
        "another batch",
    ),
    "    def scores_of(self, f):\n        return -super().scores_of(f)": (
        "learns-something",
        "the accuracy on base classes",
    ),
    "    def learn(self, s):\n        super().learn(s)\n        torch.rand(1)": (
        "global-state-unchanged",
        "learn changes the global generator of torch; nn.Linear and other modules draw weights",
    ),
    "    def state(self):\n        return super().state() | {'kind': {1, 2}}": (
        "state-is-plain",
        "set is not a JSON value at /kind",
    ),
    "    def restore(self, state):\n        super().restore(state)\n        self.sessions = 9": (
        "restore-is-identity",
        "/sessions",
    ),
    "    def fit(self, b):\n        super().fit(b)\n        b.labels.zero_()": (
        "input-unchanged",
        "have changed",
    ),
    "    def fit(self, b):\n        super().fit(b)\n        self.seen = b": (
        "images-kept",
        "images_kept() says 0",
    ),
    "    def embed(self, i):\n        return super().embed(i) * max(1, self.sessions)": (
        "frozen-features",
        "other features after learn",
    ),
    "    def fit(self, b):\n        super().fit(b)\n"
    "        self.more = torch.nn.Parameter(torch.ones(3))\n\n"
    "    def state(self):\n        return super().state() | {'more': self.more.detach()}": (
        "parameters-are-trained",
        "not trained: /more",
    ),
    "    def fit(self, b):\n        super().fit(b)\n"
    "        from fewmore.training.loop import EpochsConfig, train_epochs\n"
    "        net, head = self.network.backbone, torch.nn.Parameter(torch.ones(64))\n"
    "        def loss(rows, generator):\n"
    "            return (head * torch.tensor([2.0] * 64)).sum()\n"
    "        train_epochs('more', {}, [head], loss, 48, EpochsConfig(batch=8), self.runtime, 0)": (
        "steps-never-wait",
        "makes a tensor of Python's numbers",
    ),
    "    def fit(self, b):\n        raise KeyError('no such thing')": (
        "same-seed",
        "KeyError: 'no such thing'",
    ),
}


@pytest.mark.parametrize("body", WRONG, ids=[f"{check}" for check, _ in WRONG.values()])
def test_what_is_wrong_is_found(body, tmp_path, monkeypatch):
    name, words = WRONG[body]
    path = tmp_path / "mine.py"
    path.write_text(HEAD + body + "\n")
    only = [check for check in CHECKS if check.name == name]
    monkeypatch.setattr("fewmore.research.exam.CHECKS", only)
    (verdict,) = examine(make_case(f"{path}:Mine"))
    assert verdict.result == "failed"
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("numpy.random.rand()", "learn changes the global generator of numpy"),
        ("torch.set_default_dtype(torch.float64)", "learn changes torch's default dtype"),
    ],
)
def test_what_changes_in_the_process_is_named(line, words, tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    body = f"    def learn(self, s):\n        super().learn(s)\n        {line}\n"
    path.write_text("import numpy" + HEAD + body)
    only = [check for check in CHECKS if check.name == "global-state-unchanged"]
    monkeypatch.setattr("fewmore.research.exam.CHECKS", only)
    try:
        (verdict,) = examine(make_case(f"{path}:Mine"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (verdict.result, verdict.reason) == ("failed", words)


def test_a_call_before_fit_says_how_to_refuse_it(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + "    def state(self):\n        return {'means': self.means}\n")
    monkeypatch.setattr("fewmore.research.exam.CHECKS", CHECKS[:1])
    (verdict,) = examine(make_case(f"{path}:Mine"))
    start = "state before fit raises AttributeError: 'Mine' object has no attribute 'means' ("
    assert verdict.reason.startswith(start)
    assert f"{path}:9), and no NotFittedError: begin it with: if not" in verdict.reason


def test_where_scores_are_not_finite_checks_that_compare_them_are_skipped(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + "    def scores_of(self, f):\n        return super().scores_of(f) / 0\n")
    verdicts = {verdict.check: verdict for verdict in examine(make_case(f"{path}:Mine"))}
    failed = [name for name, verdict in verdicts.items() if verdict.result == "failed"]
    assert failed == ["scores-cover-classes"]
    assert verdicts["scores-cover-classes"].reason.endswith("160 of 160 scores are not finite")
    skipped = [verdict for verdict in verdicts.values() if verdict.result == "skipped"]
    assert len(skipped) == 11
    assert {verdict.reason for verdict in skipped} == {"scores are not finite"}


def test_a_class_says_that_the_order_of_classes_matters(tmp_path, monkeypatch):
    check = next(check for check in CHECKS if check.name == "order-independence")
    monkeypatch.setattr("fewmore.research.exam.CHECKS", [check])
    body = "    def scores_of(self, f):\n        return super().scores_of(f) * self.sessions\n"
    path = tmp_path / "mine.py"
    path.write_text(HEAD + body)
    (verdict,) = examine(make_case(f"{path}:Mine"))
    assert (verdict.result, verdict.reason) == (
        "failed",
        "two sessions instead of one: other scores; "
        "if that is meant, say so in the class: ordered = True",
    )
    path.write_text(HEAD + "    ordered = True\n" + body)
    (verdict,) = examine(make_case(f"{path}:Mine"))
    assert (verdict.result, verdict.reason) == (
        "not applicable",
        "what it learns depends on the order of classes",
    )


@pytest.fixture
def few_checks(monkeypatch):
    monkeypatch.setattr("fewmore.research.exam.CHECKS", CHECKS[:3])


def test_the_command(few_checks, tmp_path, shell, capsys):
    bad = tmp_path / "mine.py"
    bad.write_text(HEAD + next(iter(WRONG)) + "\n")
    assert shell(["fewmore", "exam", "decoupled-cosine", "finetune"]) == 0
    out = capsys.readouterr().out
    assert "decoupled-cosine: passed: scores are finite" in out
    assert "finetune: not applicable: scores_of" in out
    assert "finetune: 2 checks passed, 0 failed" in out
    assert shell(["fewmore", "exam", f"{bad}:Mine"]) == 2
    out = capsys.readouterr().out
    assert "mine: failed: before fit, every call" in out
    assert "state before fit raises no NotFittedError" in out


def test_the_command_in_json(few_checks, shell, capsys):
    assert shell(["fewmore", "exam", "decoupled-cosine", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["method"] == "decoupled-cosine"
    assert [check["result"] for check in found["checks"]] == ["passed"] * 3


@pytest.mark.parametrize("name", ["decoupled-cosin", "nowhere.py:Mine", "mine.py"])
def test_a_method_that_is_not_there(name, shell, capsys):
    assert shell(["fewmore", "exam", name]) == 2
    assert capsys.readouterr().err.startswith("fewmore: ")


def test_every_check_has_a_name_of_its_own():
    assert len({check.name for check in CHECKS}) == len(CHECKS) == 21
    assert "pytest" not in Path(sys.modules["fewmore.research.exam_checks"].__file__).read_text()
