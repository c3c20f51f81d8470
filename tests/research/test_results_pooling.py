"""Test that jobs of one experiment are pooled, and nothing else."""

from dataclasses import replace

import pytest

from fewmore.research.results import (
    SHARED_STAGE1,
    WALL_CLOCK,
    describe_pool,
    merge,
    pools,
    run_keys,
)

DRAW = "draw {}: 60 base, 5-way 5-shot"


def test_jobs_of_other_seeds_are_one_result(make_result):
    together = make_result(seeds=(0, 1, 2), extra=("views",))
    jobs = [make_result(seeds=(seed,), extra=("views",)) for seed in range(3)]
    [pool] = pools(jobs)
    merged = merge(pool)
    assert replace(merged, date=together.date) == together
    assert describe_pool(pool) == "pooled from 3 jobs"
    assert merge([together]) is together
    assert describe_pool([together]) == ""


def test_jobs_of_other_draws_are_one_result(make_result):
    jobs = [make_result(draws=(draw,), split=DRAW.format(draw)) for draw in range(2)]
    [pool] = pools(jobs)
    assert merge(pool).split == "2 draws: 60 base, 5-way 5-shot"
    assert merge(pool).draws == (0, 1)


def test_the_default_draw_of_a_benchmark_without_lists_is_draw_0(make_result):
    default = make_result("glyphs", split=DRAW.format(0))
    same = make_result("glyphs", split=DRAW.format(0), draws=(0,))
    assert run_keys(default) == run_keys(same)
    assert len(pools([default, same])) == 2, "one run that is there twice is not two runs"


@pytest.mark.parametrize(
    "about",
    [
        {"seeds": (0,)},
        {"method": "topic"},
        {"recipe": "paper"},
        {"settings": {"pretrain.epochs": 3}},
        {"all_settings": {"pretrain.epochs": "3"}},
        {"split": "draw 0: 60 base, 5-way 1-shot"},
        {"benchmark": "glyphs"},
        {"machine": {"method_source": {"file": "mine.py", "sha256": "1"}}},
        {"machine": {"benchmark_source": {"file": "photos", "sha256": "1"}}},
        {"sessions": 8},
    ],
)
def test_other_results_stay_apart(make_result, about):
    one = make_result(seeds=(0,))
    assert len(pools([one, make_result(**{"seeds": (1,), **about})])) == 2


def test_jobs_of_several_commits_and_devices_say_so(make_result):
    one = replace(make_result(), commit="a", machine={"device": "x"})
    other = replace(make_result(seeds=(1,)), commit="b", machine={"device": "y"})
    assert describe_pool([one, other]) == "pooled from 2 jobs of 2 commits and 2 devices"
    sources = [replace(one, commit=None, machine={"source": source}) for source in "ab"]
    assert describe_pool(sources) == "pooled from 2 jobs of 2 versions of the code"


def test_the_seconds_of_a_shared_stage_1_do_not_depend_on_the_order_of_jobs(make_result):
    def job(seed, workers):
        return replace(
            make_result(seeds=(seed,)),
            seconds=({WALL_CLOCK: 10.0, SHARED_STAGE1: 100.0 * workers},),
            machine={"side_by_side": workers},
        )

    jobs = [job(0, 1), job(1, 5)]
    assert merge(jobs).total_seconds == merge(jobs[::-1]).total_seconds == (110.0, 110.0)
