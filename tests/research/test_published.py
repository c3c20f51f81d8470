"""Test that the published numbers are complete and consistent, and found by our names."""

import pytest

from fewmore.nn.backbones import BACKBONES
from fewmore.research import published
from fewmore.research.published import published_row

BENCHMARKS = ("cifar100", "miniimagenet", "cub200")
MISPRINTED = {("cub200", "TEEN"), ("cub200", "S3C")}  # their PD is not their base minus their last


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_comparison_has_every_row_and_session(benchmark):
    rows = published.published(benchmark)
    assert list(rows) == list(published.ROW_OF_METHOD.values())
    for name, row in rows.items():
        assert row.name == name
        assert published.ROW_OF_METHOD[row.method] == name
        assert len(row.sessions) == len(published.PROTOCOL[benchmark])
        assert row.pd == pytest.approx(row.sessions[0] - row.sessions[-1], abs=1e-9)
        assert row.average == pytest.approx(sum(row.sessions) / len(row.sessions), abs=0.005)


def test_some_numbers_as_printed():
    cec = published.published("cifar100")["CEC"]
    assert cec.sessions == (73.07, 68.88, 65.26, 61.19, 58.09, 55.57, 53.22, 51.34, 49.14)
    assert (cec.average, cec.pd) == (59.53, 23.93)
    assert published.published("miniimagenet")["Ft-CNN"].sessions[-1] == 1.4
    assert published.published("cub200")["CEC"].average == 61.33
    assert published.later("cifar100")["FACT"] == published.PublishedRow(
        "FACT", None, (74.6, *[None] * 7, 52.1), 62.24, 22.5, "ResNet20"
    )


def test_the_ablation_ends_in_the_comparison():
    rows = published.ablation()
    assert len(rows) == 10
    assert len({row.name for row in rows}) == 10
    comparison = published.published("cub200")
    for row, name in (
        (rows[6], "Decoupled-DeepEMD"),
        (rows[7], "Decoupled-Cosine"),
        (rows[9], "CEC"),
    ):
        assert row.sessions == comparison[name].sessions
    for row in rows:
        assert row.data_init == row.classifier.endswith("Data Init.")
        assert row.decoupled == (row.method not in ("linear", "cosine"))
        assert row.adapter == row.method.startswith("cec")
        assert row.pil == (row.method == "cec")
        assert row.pd == pytest.approx(
            row.sessions[0] - row.sessions[-1], abs=0.011
        )  # one is rounded otherwise


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_later_methods_agree_with_themselves(benchmark):
    rows = published.later(benchmark)
    assert len(rows) >= 9
    for name, row in rows.items():
        first, *unknown, last = row.sessions
        assert len(row.sessions) == len(published.PROTOCOL[benchmark])
        assert set(unknown) == {None}
        assert last < row.average < first
        if (benchmark, name) not in MISPRINTED:
            assert row.pd == pytest.approx(first - last, abs=0.005)


def test_rows_are_found_by_our_names():
    row = published.row_of_method
    assert row("cifar100", "cec").name == "CEC"
    assert row("cub200", "linear").sessions[1] == 2.7
    assert row("cub200", "cosine").sessions[1] == 35.53
    assert row("cub200", "decoupled-linear").sessions[0] == 66.58
    assert row("cub200", "decoupled-linear", data_init=False).sessions[1] == 7.22
    assert row("cub200", "decoupled-cosine", data_init=False).sessions[1] == 48.5
    assert row("cub200", "decoupled-l2").pd == 26.13
    assert row("cub200", "cec-meta").pd == 26.45
    assert row("cifar100", "linear") is None
    assert row("cifar100", "decoupled-cosine", data_init=False) is None
    assert row("cub200", "joint") is None
    assert row("glyphs", "cec") is None


def test_other_benchmarks_have_nothing_published():
    assert published.published("glyphs") == {}
    assert published.later("folder:birds") == {}
    assert "CVPR 2021" in published.source()
    assert "test set" in published.later_note()


def test_published_rows_belong_to_the_same_protocol_and_variant(make_result):
    assert published_row(make_result()).name == "CEC"
    assert published_row(make_result(method="lucir")).name == "NCM"
    assert (
        published_row(make_result(method="finetune", settings={"session.data_init": False})).name
        == "Ft-CNN"
    )
    assert published_row(make_result(method="joint")) is None
    assert published_row(make_result(base=50, way=10, sessions=6)) is None
    assert published_row(make_result(benchmark="glyphs")) is None
    assert published_row(make_result(machine={"method_source": {"file": "cec.py"}})) is None
    assert published_row(make_result(split="draw 0: 60 base, 5-way 5-shot")) is None
    assert published_row(make_result(method="decoupled-cosine")).name == "Decoupled-Cosine"
    for value in (False, "false", "False"):
        assert (
            published_row(
                make_result(method="decoupled-cosine", settings={"session.data_init": value})
            )
            is None
        )


# ---- what the numbers contain


def test_every_published_method_is_described():
    described = [method for about in published.contents() for method in about.methods]
    assert len(described) == len(set(described)), "a method is described once"
    for benchmark in BENCHMARKS:
        rows = {**published.published(benchmark), **published.later(benchmark)}
        assert set(rows) <= set(described)
        for about in published.contents():
            for method in set(about.methods) & set(rows):
                row = rows[method]
                assert benchmark in about.backbones, method
                expected = (row.sessions[-1], row.average)
                assert published.accuracy_of(method, about, benchmark) == expected


def test_facts_are_complete_and_say_where_they_were_read():
    kinds = {published.BEST_ON_TEST, published.LAST_EPOCH, published.UNKNOWN}
    for about in published.contents():
        assert about.selection in kinds
        assert set(about.backbones.values()) <= set(published.backbones())
        assert set(about.views) == set(BENCHMARKS)
        assert set(about.accuracy) <= set(BENCHMARKS)
        assert (about.commit is None) <= bool(about.problems), "what is not read is explained"
        if about.commit:
            assert about.repository.count("/") == 1
            assert len(about.commit) == 7


def test_parameters_are_those_of_our_networks():
    known = published.backbones()
    for name in ("resnet20", "resnet18", "resnet18-3x3", "resnet12"):
        network = BACKBONES[name].build()
        assert known[name].parameters == sum(weight.numel() for weight in network.parameters())
    assert known["resnet18-imagenet"].parameters == known["resnet18"].parameters


def about(method):
    return next(each for each in published.contents() if method in each.methods)


def test_obstacles_to_a_comparison():
    assert about("CLOSER").obstacles("cifar100") == []
    assert about("CEC").obstacles("cub200") == ["epoch best on test"]
    assert about("MoTiC").obstacles("miniimagenet") == ["4 views"]
    assert about("WaRP").obstacles("cifar100") == ["another backbone"]
    assert about("WaRP").obstacles("miniimagenet") == []
    assert "images kept" in about("OrCo").obstacles("cub200")
    assert "extra data" in about("Flexi-FSCIL").obstacles("cifar100")
    assert "scores depend on the batch" in about("FACL").obstacles("cifar100")
    assert published.accuracy_of("FACL", about("FACL"), "cifar100") == (58.2, 70.4)
    assert published.accuracy_of("CLOSER", about("CLOSER"), "cifar100") == (None, 63.1)
