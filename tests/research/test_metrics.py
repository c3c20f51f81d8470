"""Test every measure against a slow reference in plain Python, and examples worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewmore.errors import DataError
from fewmore.research import metrics

# Worked by hand: 2 base classes (2 images each), then one class (2 images) a session, twice.
LABELS = np.array([0, 0, 1, 1, 2, 2, 3, 3])
SESSION_OF_CLASS = np.array([0, 0, 1, 2])
PREDICTIONS = np.array(
    [
        [0, 0, 1, 0, -1, -1, -1, -1],  # base 3/4
        [0, 2, 1, 0, 2, 2, -1, -1],  # base 2/4, new 2/2, all 4/6
        [0, 2, 3, 0, 2, 3, 3, 0],  # base 1/4, session 1 1/2, session 2 1/2, all 3/8
    ]
)
EXAMPLE = (LABELS, SESSION_OF_CLASS, PREDICTIONS)


@st.composite
def runs(draw):
    """Sample a run: labels, arrivals and predictions; every class has a test image."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    session_of_class = np.repeat(np.arange(len(sizes)), sizes)
    per_class = draw(
        st.lists(st.integers(1, 4), min_size=len(session_of_class), max_size=len(session_of_class))
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.permutation(np.repeat(np.arange(len(session_of_class)), per_class))
    skill = draw(st.floats(0, 1))
    predictions = np.full((len(sizes), len(labels)), -1)
    for session in range(len(sizes)):
        seen = int((session_of_class <= session).sum())
        arrived = session_of_class[labels] <= session
        guesses = np.where(
            rng.random(len(labels)) < skill, labels, rng.integers(0, seen, len(labels))
        )
        predictions[session, arrived] = guesses[arrived]
    return labels, session_of_class, predictions


def slow_accuracy(run, session, arrivals):
    """Return the accuracy after a session on classes that arrived in `arrivals`, image by image."""
    labels, session_of_class, predictions = run
    right = total = 0
    for image, label in enumerate(labels):
        if session_of_class[label] in arrivals:
            total += 1
            right += int(predictions[session][image] == label)
    return 100 * right / total


@settings(max_examples=60, deadline=None)
@given(runs())
def test_accuracies_match_counting_one_by_one(run):
    sessions = range(len(run[2]))
    assert metrics.accuracy(*run) == pytest.approx(
        [slow_accuracy(run, t, range(t + 1)) for t in sessions]
    )
    assert metrics.base_accuracy(*run) == pytest.approx(
        [slow_accuracy(run, t, [0]) for t in sessions]
    )
    novel = metrics.novel_accuracy(*run)
    assert math.isnan(novel[0])
    assert novel[1:] == pytest.approx(
        [slow_accuracy(run, t, range(1, t + 1)) for t in sessions[1:]]
    )
    table = metrics.accuracy_by_arrival(*run)
    for t in sessions:
        for i in sessions:
            assert (
                math.isnan(table[t, i])
                if i > t
                else table[t, i] == pytest.approx(slow_accuracy(run, t, [i]))
            )


@settings(max_examples=60, deadline=None)
@given(runs())
def test_forgetting_matches_its_definition(run):
    end = len(run[2]) - 1
    expected = [
        max(slow_accuracy(run, t, [i]) for t in range(i, end)) - slow_accuracy(run, end, [i])
        for i in range(end)
    ]
    assert metrics.forgetting(*run) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_generalised_accuracy_matches_a_fine_sum_over_alpha(run):
    _, session_of_class, predictions = run
    sessions = len(predictions)
    if sessions == 1:
        assert math.isnan(metrics.generalized_accuracy(*run))
        return
    way = sum(1 for s in session_of_class if s > 0) / (sessions - 1)
    largest = sum(1 for s in session_of_class if s == 0) / way
    steps = 2000
    area = 0.0
    parts = [[slow_accuracy(run, k, [i]) for i in range(k + 1)] for k in range(1, sessions)]
    for step in range(steps):  # the midpoint rule
        alpha = (step + 0.5) * largest / steps
        area += (
            sum((alpha * part[0] + sum(part[1:])) / (alpha + len(part) - 1) for part in parts)
            / (sessions - 1)
            / steps
        )
    assert metrics.generalized_accuracy(*run) == pytest.approx(area, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_confusion_matrix_matches_counting_and_gives_the_accuracy_back(run):
    labels, session_of_class, predictions = run
    for session, row in enumerate(predictions):
        matrix = metrics.confusion_matrix(labels, row, len(session_of_class))
        expected = [
            [sum((labels == r) & (row == c)) for c in range(len(session_of_class))]
            for r in range(len(session_of_class))
        ]
        assert matrix.tolist() == expected
        assert 100 * matrix.trace() / matrix.sum() == pytest.approx(metrics.accuracy(*run)[session])


@settings(max_examples=60, deadline=None)
@given(runs(), st.randoms(use_true_random=False))
def test_the_order_of_the_images_does_not_matter(run, random):
    labels, session_of_class, predictions = run
    order = list(range(len(labels)))
    random.shuffle(order)
    one, other = (
        metrics.summarize(*run),
        metrics.summarize(labels[order], session_of_class, predictions[:, order]),
    )
    for name in ("accuracy", "base", "novel", "harmonic", "forgetting", "gacc"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@settings(max_examples=60, deadline=None)
@given(runs())
def test_a_run_cut_short_is_the_beginning_of_the_whole(run):
    labels, session_of_class, predictions = run
    whole = metrics.summarize(*run)
    for sessions in range(1, len(predictions) + 1):
        part = metrics.summarize(labels, session_of_class, predictions[:sessions])
        for name in ("accuracy", "base", "novel", "harmonic"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[:sessions])


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 100), st.floats(0, 100))
def test_harmonic_mean_lies_between_and_is_zero_with_either(base, novel):
    (mean,) = metrics.harmonic_mean(np.array([base]), np.array([novel]))
    assert min(base, novel) - 1e-9 <= mean <= (base + novel) / 2 + 1e-9
    if base * novel > 1e-100:
        assert mean == pytest.approx(2 / (1 / base + 1 / novel))
    elif min(base, novel) == 0:
        assert mean == 0


def test_the_worked_example():
    summary = metrics.summarize(*EXAMPLE)
    assert summary.accuracy == pytest.approx([75, 400 / 6, 37.5])
    assert summary.base == pytest.approx([75, 50, 25])
    assert summary.novel[1:] == pytest.approx([100, 50])
    assert math.isnan(summary.novel[0])
    assert math.isnan(summary.harmonic[0])
    assert summary.harmonic[1:] == pytest.approx([2 * 50 * 100 / 150, 2 * 25 * 50 / 75])
    assert summary.forgetting == pytest.approx([75 - 25, 100 - 50])
    assert summary.average == pytest.approx((75 + 400 / 6 + 37.5) / 3)
    assert summary.last == pytest.approx(37.5)
    assert summary.pd == pytest.approx(37.5)
    # α goes from 0 to 2. After session 1: (50α + 100)/(α + 1), area 100 + 50·ln 3.
    # After session 2: (25α + 100)/(α + 2), area 50 + 50·ln 2.
    assert summary.gacc == pytest.approx(
        ((100 + 50 * math.log(3)) / 2 + (50 + 50 * math.log(2)) / 2) / 2
    )


def test_forgetting_is_negative_where_the_end_is_the_best():
    predictions = np.array([[1, 0, -1], [0, 0, 2]])
    assert metrics.forgetting(
        np.array([0, 1, 2]), np.array([0, 0, 1]), predictions
    ) == pytest.approx([-50])


def test_generalised_accuracy_of_equal_accuracies_is_that_accuracy():
    labels = np.repeat(np.arange(6), 2)
    session_of_class = np.array([0, 0, 0, 0, 1, 2])
    predictions = np.where(np.arange(12) % 2, labels, (labels + 1) % 4)[None].repeat(3, 0)
    for session in range(3):
        predictions[session, session_of_class[labels] > session] = -1
    assert metrics.generalized_accuracy(labels, session_of_class, predictions) == pytest.approx(50)


def test_a_base_session_alone_has_no_novel_measures():
    summary = metrics.summarize([0, 1], [0, 0], [[0, 0]])
    assert summary.accuracy.tolist() == summary.base.tolist() == [50]
    assert math.isnan(summary.novel[0])
    assert summary.forgetting.shape == (0,)
    assert summary.pd == 0
    assert math.isnan(summary.gacc)


def test_classes_without_test_images_are_undefined_and_harm_nothing_else():
    summary = metrics.summarize([0, 0, 2], [0, 1, 2], [[0, 0, -1], [0, 1, -1], [0, 0, 2]])
    assert summary.accuracy == pytest.approx([100, 50, 100])
    assert np.isnan(summary.novel).tolist() == [True, True, False]
    assert np.isnan(summary.forgetting).tolist() == [False, True]


def test_accuracy_is_over_images_not_over_classes():
    labels, predictions = np.array([0, 0, 0, 1]), np.array([[0, 0, 0, 0]])
    assert metrics.accuracy(labels, np.array([0, 0]), predictions) == pytest.approx([75])


def test_mean_and_std_over_runs():
    mean, std = metrics.mean_std([[50, 40], [52, 40], [54, 46]])
    assert mean == pytest.approx([52, 42])
    assert std == pytest.approx([2, math.sqrt(12)])
    mean, std = metrics.mean_std([[50.0, 40.0]])
    assert mean.tolist() == [50, 40]
    assert np.isnan(std).all()


def test_spread_over_seeds_and_over_draws_is_told_apart():
    seeds, draws = [0, 0, 1, 1], [0, 1, 0, 1]
    values = [50.0, 60.0, 50.0, 60.0]  # the draw makes all the difference
    assert metrics.std_within(values, fixed=draws) == 0
    assert metrics.std_within(values, fixed=seeds) == pytest.approx(math.sqrt(50))
    assert math.isnan(metrics.std_within([1.0, 2.0], fixed=[0, 1]))
    assert metrics.std_within([1.0, 2.0, 4.0], fixed=[None] * 3) == pytest.approx(
        np.std([1, 2, 4], ddof=1)
    )


@pytest.mark.parametrize(
    ("labels", "session_of_class", "predictions", "says"),
    [
        ([0], [0], [0], "predictions (sessions, n)"),
        ([0, 0], [0], [[0]], "not (2,), (1,) and (1, 1)"),
        ([0], [1], [[0]], "begin with 0"),
        ([0, 1], [0, 2], [[0, -1]], "steps of 1"),
        (
            [0, 1],
            [0, 0],
            [[0, 0], [0, 0]],
            "predictions of 2 sessions, but the classes arrive in 1",
        ),
        ([0, 2], [0, 0], [[0, 0]], "labels must lie in 0 … 1, not 0 … 2"),
        ([0, 1], [0, 1], [[0, 0], [0, 1]], "session 0 predicts images whose class has not arrived"),
        (
            [0, 1],
            [0, 1],
            [[1, -1], [0, -1]],
            "outside its 1 seen classes 0 … 0; session 1 has predictions outside",
        ),
    ],
)
def test_arrays_that_are_no_run_are_refused(labels, session_of_class, predictions, says):
    with pytest.raises(DataError) as error:
        metrics.summarize(labels, session_of_class, predictions)
    assert says in str(error.value)
