"""Test paired differences against SciPy's own paired test."""

import pytest
from scipy.stats import ttest_rel

from fewmore.research.statistics import paired_difference


def test_interval_and_p_value_are_those_of_a_paired_t_test():
    ours, theirs = [61.2, 60.1, 62.8, 61.0], [60.0, 60.3, 61.1, 60.2]
    found = paired_difference(ours, theirs)
    expected = ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.pairs, found.mean) == (4, pytest.approx(0.875))


@pytest.mark.parametrize(("gain", "p"), [(0.0, 1.0), (1.0, 0.0)])
def test_differences_that_are_all_the_same_have_a_p_value(gain, p):
    found = paired_difference([1.0 + gain, 2.0 + gain], [1.0, 2.0])
    assert (found.mean, found.low, found.high, found.p) == (gain, gain, gain, p)


def test_one_pair_has_no_interval():
    with pytest.raises(ValueError, match="from 2 pairs on, and there are 1"):
        paired_difference([1.0], [2.0])
