"""Test paired differences against SciPy's own paired test."""

import pytest
from scipy.stats import ttest_rel

from fewmore.research.statistics import common_runs, paired_difference


def test_interval_and_p_value_are_those_of_a_paired_t_test():
    ours, theirs = [61.2, 60.1, 62.8, 61.0], [60.0, 60.3, 61.1, 60.2]
    found = paired_difference(ours, theirs)
    expected = ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.pairs, found.mean) == (4, pytest.approx(0.875))


@pytest.mark.parametrize("gain", [0.0, 1.0, 0.1])
def test_differences_that_are_all_the_same_are_not_tested(gain):
    found = paired_difference([1.1 + gain, 2.3 + gain, 61.7 + gain], [1.1, 2.3, 61.7])
    assert found.mean == pytest.approx(gain)
    assert (found.low, found.high, found.p) == (None, None, None)


def test_draws_of_one_seed_are_one_pair_where_there_are_several_seeds():
    """Else shots that are drawn often enough make any difference of trainings significant."""
    ours = {("", seed, draw): 10.0 * seed + draw for seed in (0, 1) for draw in (0, 1, 2)}
    theirs = {key: value - 1 - key[1] for key, value in ours.items() if key != ("", 1, 2)}
    values, reference = common_runs(ours, theirs)
    assert (values, reference) == ([1.0, 10.5], [0.0, 8.5])
    one_seed = {key: value for key, value in ours.items() if key[1] == 0}
    assert common_runs(one_seed, theirs) == ([0.0, 1.0, 2.0], [-1.0, 0.0, 1.0])
    assert common_runs(one_seed, {}) == ([], [])


def test_one_pair_has_no_interval():
    with pytest.raises(ValueError, match="from 2 pairs on, and there are 1"):
        paired_difference([1.0], [2.0])
