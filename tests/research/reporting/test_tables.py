"""Test that tables hold the right numbers in the right places, in every format."""

import csv
import dataclasses
import io
from dataclasses import replace

import numpy as np
import pytest

from fewmore.errors import ConfigError
from fewmore.research import metrics, published, results
from fewmore.research.reporting import nothing_learnt, paired
from fewmore.research.reporting.formats import (
    grid_to_csv,
    grid_to_latex,
    grid_to_markdown,
    to_csv,
    to_latex,
    to_markdown,
)
from fewmore.research.reporting.tables import (
    SUMMARY,
    Cell,
    Grid,
    Row,
    Table,
    build,
    groups,
    number,
    seconds_text,
    title,
)
from fewmore.research.results import merge


@pytest.fixture(scope="module")
def several(make_result):
    return make_result(seeds=(0, 1, 2), draws=(0, 1))


@pytest.fixture(scope="module")
def single(make_result):
    return make_result(method="finetune", skill=0.2)


@pytest.fixture(scope="module")
def table(several, single):
    return build([several, single])


def test_results_that_cannot_be_compared_are_apart(make_result):
    one, other, shape, same = (
        make_result(),
        make_result("glyphs"),
        make_result(base=50, way=10, sessions=6),
        make_result(method="topic"),
    )
    assert groups([one, other, shape, same]) == [[one, same], [other], [shape]]
    assert groups([]) == []


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({}, "glyphs: 60 classes, then 8 sessions of 5"),
        ({"sessions": 2, "way": 7}, "glyphs: 60 classes, then 1 session of 7"),
        ({"sessions": 1}, "glyphs: 60 classes"),
    ],
)
def test_titles(make_result, shape, expected):
    assert title(make_result("glyphs", **shape)) == expected


def test_columns_and_cells_are_parallel(table):
    assert table.columns == (*"012345678", *SUMMARY)
    assert all(len(row.cells) == len(table.columns) for row in table.rows)


def test_measured_cells_are_means_and_deviations_over_runs(table, several):
    row = table.rows[0]
    accuracy = np.array(several.accuracy)
    series = [*accuracy.T, accuracy.mean(1), accuracy[:, 0] - accuracy[:, -1]]
    series += [
        [run[-1] for run in field] for field in (several.base, several.novel, several.harmonic)
    ] + [several.gacc]
    assert [cell.mean for cell in row.cells] == pytest.approx(
        [np.mean(values) for values in series]
    )
    assert [cell.std for cell in row.cells] == pytest.approx(
        [np.std(values, ddof=1) for values in series]
    )
    assert (row.name, row.source, row.runs, row.detail) == (
        "cec",
        "measured",
        6,
        "3 seeds × 2 draws",
    )


def test_a_single_run_has_no_deviation(table):
    row = table.rows[2]
    assert (row.name, row.detail) == ("finetune", "1 run")
    assert {cell.std for cell in row.cells} == {None}


def test_the_published_row_follows_its_method(table):
    assert [row.label for row in table.rows] == [
        "cec",
        "CEC, published",
        "finetune",
        "Ft-CNN, published",
    ]
    cells = table.rows[1].cells
    assert [cell.mean for cell in cells[:11]] == [
        *published.published("cifar100")["CEC"].sessions,
        59.53,
        23.93,
    ]
    assert cells[11:] == (Cell(),) * 4


def test_two_results_of_a_method_share_one_published_row(make_result):
    table = build(
        [make_result(recipe="paper"), make_result(method="topic"), make_result(recipe="official")]
    )
    assert [row.label for row in table.rows] == [
        "cec, paper",
        "topic",
        "TOPIC, published",
        "cec, official",
        "CEC, published",
    ]


def test_published_rows_can_be_none_or_all(several):
    assert [row.source for row in build([several], with_published=False).rows] == ["measured"]
    every = build([several], all_published=True)
    labels = [row.label for row in every.rows]
    assert labels[:2] == ["cec", "CEC, published"]
    assert len(labels) == len(set(labels)) == 1 + 8 + len(published.later("cifar100"))
    fact = next(row for row in every.rows if row.name == "FACT")
    assert (fact.cells[0].mean, fact.cells[1].mean, fact.cells[8].mean, fact.detail) == (
        74.6,
        None,
        52.1,
        "ResNet20",
    )
    assert any("choose epochs on the test set" in note for note in every.notes)


@pytest.mark.parametrize(
    "split",
    [
        "draw 0: 60 base, 5-way 5-shot",
        "draw 0: 60 base, 5-way 1-shot",
        "draw 0: 60 base, 5-way 5-shot, class order 7",
        "3 draws: 60 base, 5-way 5-shot",
    ],
)
def test_published_rows_belong_to_the_official_split_alone(make_result, split):
    drawn = make_result(split=split)
    table = build([drawn], all_published=True)
    assert [row.source for row in table.rows] == ["measured"]
    official = make_result(method="topic")
    labels = [row.label for row in build([drawn, official]).rows]
    assert labels == ["cec", "topic", "TOPIC, published"]


def test_every_table_names_its_split_in_every_format(make_result):
    drawn = make_result(split="draw 3: 60 base, 5-way 1-shot")
    for write in (to_markdown, to_latex, lambda table: to_csv([table])):
        assert "draw 3: 60 base, 5-way 1-shot" in write(build([drawn]))
    assert build([drawn]).title.endswith("of 5; split: draw 3: 60 base, 5-way 1-shot")
    both = build([drawn, make_result(method="topic")], with_published=False)
    assert both.title.endswith("; several splits")
    assert [row.detail for row in both.rows] == [
        "1 run, split: draw 3: 60 base, 5-way 1-shot",
        "1 run, official split",
    ]


def test_another_protocol_has_nothing_published(make_result):
    table = build([make_result(base=50, way=10, sessions=6)], all_published=True)
    assert [row.source for row in table.rows] == ["measured"]
    assert not any("published" in note for note in table.notes)


def test_notes_tell_the_deviation_over_seeds_from_that_over_draws(table, several):
    last = np.array(several.last).reshape(3, 2)
    seeds, draws = np.sqrt(last.var(0, ddof=1).mean()), np.sqrt(last.var(1, ddof=1).mean())
    assert (
        f"cec, last session: ± {seeds:.2f} over seeds with the draw fixed, ± {draws:.2f} over draws"
        in table.notes
    )


def test_the_runs_are_described_in_words(make_result):
    def detail(**runs):
        return build([make_result(sessions=2, **runs)]).rows[0].detail

    assert detail(seeds=(0, 1)) == "2 seeds"
    assert detail(draws=(0, 1, 2)) == "3 draws"
    assert detail(seeds=(3, 3)) == "2 runs"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (64.1, "64.10"), (-0.001, "0.00"), (-0.5, "-0.50"), (100.0, "100.00")],
)
def test_numbers_have_two_decimals(value, text):
    assert number(value) == text


def test_csv_reads_back(make_result, table, several):
    other = build([make_result("cub200", "decoupled-linear", base=100, way=10, sessions=11)])
    rows = list(csv.DictReader(io.StringIO(to_csv([table, other]))))
    assert len(rows) == len(table.rows) + len(other.rows)
    first = rows[0]
    assert (first["benchmark"], first["method"], first["source"], first["runs"]) == (
        "cifar100",
        "cec",
        "measured",
        "6",
    )
    assert float(first["session_8"]) == pytest.approx(np.mean(several.last), abs=1e-4)
    assert float(first["session_8_std"]) == pytest.approx(np.std(several.last, ddof=1), abs=1e-4)
    assert first["session_9"] == first["session_10"] == ""
    assert float(first["gacc"]) == pytest.approx(np.mean(several.gacc), abs=1e-4)
    assert (rows[1]["method"], rows[1]["session_0"], rows[1]["pd"], rows[1]["gacc"]) == (
        "CEC",
        "73.07",
        "23.93",
        "",
    )
    assert {row["split"] for row in rows} == {"official"}
    assert (rows[5]["session_10"], rows[5]["pd"]) == (
        "32.76",
        "33.83",
    )


def test_csv_of_nothing_is_a_header():
    assert to_csv([]).count("\n") == 1


def test_markdown_has_one_cell_a_column(table):
    lines = to_markdown(table).splitlines()
    assert lines[0] == "**cifar100: 60 classes, then 8 sessions of 5; official split**"
    body = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in body} == {len(table.columns) + 2}
    mean, std = table.rows[0].cells[0].mean, table.rows[0].cells[0].std
    assert body[2].startswith(f"| cec (3 seeds × 2 draws) | {mean:.2f} ± {std:.2f} | ")
    assert body[3].startswith("| CEC, published | 73.07 | 68.88 ")
    assert body[3].endswith("| 59.53 | 23.93 | – | – | – | – |")


def test_latex_is_balanced_and_has_one_cell_a_column(table):
    lines = to_latex(table).splitlines()
    assert "\\toprule" in lines
    assert "\\bottomrule" in lines
    rows = lines[lines.index("\\midrule") + 1 : lines.index("\\bottomrule")]
    assert {row.count("&") for row in rows} == {table.sessions + 1}, "the sessions and PD"
    assert all(row.endswith(" \\\\") and row.count("{") == row.count("}") for row in rows)
    assert rows[1].startswith("\\textit{CEC, published} & 73.07 & 68.88 ")
    assert rows[1].endswith(" & 49.14 & 23.93 \\\\")
    assert f"{{l{'r' * 10}}}" in to_latex(table)
    assert "% cec: 3 seeds × 2 draws" in lines


def test_draws_of_several_seeds_are_no_further_measurements(make_result):
    def measurements(**about):
        return build([make_result(**about)]).rows[0].measurements

    assert measurements(seeds=(0, 1, 2), draws=(0, 1)) == 3
    assert measurements(seeds=(0,), draws=(0, 1)) == 2, "one seed: the draws are"
    assert measurements(seeds=(0, 1)) == 2


def test_latex_has_the_best_measured_numbers_in_bold_and_all_that_noise_does_not_tell_from_them():
    def row(name, last, drop, std=None, **about):
        cells = (Cell(70.0), Cell(last, std), Cell(60.0), Cell(drop), *(Cell(),) * 4)
        return Row(name, about.pop("source", "measured"), "", cells, measurements=4, **about)

    rows = (
        row("a", 50.0, 20.0, 1.0),
        row("b", 49.5, 19.0, 9.0),
        row("c", 49.4, 19.5),
        row("joint", 60.0, 10.0, reference=True),
        row("CEC", 70.0, 1.0, source="published"),
    )
    lines = to_latex(Table("x", "x", 2, rows)).splitlines()
    found = {
        line.partition(" & ")[0]: line.removesuffix(" \\\\").split(" & ")[2:]
        for line in lines[lines.index("\\midrule") + 1 :][:5]
    }
    assert found == {
        "a": [r"\textbf{50.00}", "20.00"],
        "b": [r"\textbf{49.50}", r"\textbf{19.00}"],
        "c": ["49.40", "19.50"],
        "joint": ["60.00", "10.00"],
        "\\textit{CEC, published}": ["70.00", "1.00"],
    }, "one standard error of the best is 0.5"
    assert "textbf" not in to_latex(Table("x", "x", 2, rows[:1])), "a row alone has no rivals"


def test_names_that_look_like_markup_are_escaped():
    row = Row("my_method|a*b & 50%", "measured", "a \\ b", (Cell(-1.5),) * 7)
    table = Table("x", "x_y", 1, (row,))
    assert "my\\_method\\|a\\*b" in to_markdown(table)
    latex = to_latex(table)
    assert "my\\_method|a*b \\& 50\\% & $-$1.50 & $-$1.50 \\\\" in latex


# Relative improvement


def test_improvements_are_differences_of_drops_measured_and_published_apart(make_result):
    given = [
        make_result(method="finetune", skill=0.2),
        make_result(method="cec"),
        make_result(method="linear", skill=0.9),
    ]
    table = build(given, improvement_of="cec")
    place = table.columns.index("relative improvement")
    assert place == len(table.columns) - 1
    found = {row.label: row.cells[place].mean for row in table.rows}
    rows = published.published("cifar100")
    assert found["finetune"] == pytest.approx(given[0].pd[0] - given[1].pd[0])
    assert found["linear"] == pytest.approx(given[2].pd[0] - given[1].pd[0])
    assert (
        found["Ft-CNN, published"]
        == pytest.approx(rows["Ft-CNN"].pd - rows["CEC"].pd)
        == pytest.approx(37.52)
    )
    assert found["cec"] is found["CEC, published"] is None
    assert "+37.52 |" in to_markdown(table)
    (_, *lines) = csv.reader(io.StringIO(to_csv([table, build(given)])))
    assert len({len(line) for line in lines}) == 1, "a table without it has an empty field"
    widths = {
        line.count("&")
        for line in to_latex(table).partition("\\end{tabular}")[0].splitlines()
        if line.endswith("\\\\") and "multicolumn" not in line
    }
    assert widths == {table.sessions + 2}, "PD and the improvement"
    assert r"& PD $\downarrow$ & \shortstack{relative\\improvement} \\" in to_latex(table)


def test_without_the_method_there_is_no_improvement(make_result):
    table = build([make_result("glyphs", "finetune")], improvement_of="cec")
    assert [row.cells[-1].mean for row in table.rows] == [None]


def test_rows_can_be_given_names(make_result):
    given = [make_result("glyphs", settings={"pseudo.angles": "180"}), make_result("glyphs")]
    assert [row.label for row in build(given, labels=["180°", "all"]).rows] == ["180°", "all"]


# Grids


def test_a_grid_in_every_format():
    grid = Grid(
        "a & b",
        "ways",
        ("1 shot", "±5°"),
        (("5", (Cell(1.5, 0.25), Cell(2.0))), ("x_y", (Cell(), Cell(-3.0)))),
        ("50 %",),
    )
    assert grid_to_markdown(grid) == (
        "**a & b**\n\n"
        "| ways | 1 shot | ±5° |\n"
        "| --- | ---: | ---: |\n"
        "| 5 | 1.50 ± 0.25 | 2.00 |\n"
        "| x\\_y | – | -3.00 |\n\n"
        "50 %\n"
    )
    assert grid_to_csv(grid).splitlines() == [
        "ways,1 shot,±5°,1 shot_std,±5°_std",
        "5,1.5,2.0,0.25,",
        "x_y,,-3.0,,",
    ]
    latex = grid_to_latex(grid)
    assert r"ways & 1 shot & $\pm$5$^\circ$ \\" in latex
    assert r"x\_y & -- & $-$3.00 \\" in latex
    assert grid_to_csv(Grid("", "ways", ("1",), (("5", (Cell(1.0),)),))).splitlines() == [
        "ways,1",
        "5,1.0",
    ]


def test_a_method_that_keeps_images_says_so(make_result):
    plain = make_result()
    assert "keeps" not in build([plain]).rows[0].detail
    counted = dataclasses.replace(
        plain, keeps="a few images a class", extra={"images_kept": ((1200.0, 1400.0),) * plain.runs}
    )
    assert build([counted]).rows[0].detail.endswith(", keeps 1,400 images")
    assert (
        build([dataclasses.replace(plain, keeps="every image")])
        .rows[0]
        .detail.endswith(", keeps every image")
    )


def test_csv_and_latex_say_what_a_result_cost(make_result):
    seconds = (("share of the wall clock", 12.0), ("pretrain (shared)", 28.0))
    plain = make_result(seeds=(0, 1), seconds=seconds)
    kept = ((1200.0,) * 9, (1300.0,) * 9)
    given = dataclasses.replace(plain, extra={"images_kept": kept})
    [row, published_row] = csv.DictReader(io.StringIO(to_csv([build([given])])))
    forgetting = np.mean(plain.forgetting, axis=1)
    assert float(row["forgetting"]) == pytest.approx(forgetting.mean(), abs=1e-4)
    assert float(row["forgetting_std"]) == pytest.approx(forgetting.std(ddof=1), abs=1e-4)
    assert (row["seconds"], row["seconds_std"]) == ("40.0", "0.0")
    assert (row["images_kept"], row["images_kept_std"]) == ("1250.0", "70.7107")
    assert published_row["seconds"] == ""
    summary = to_latex(build([given])).rpartition("\\begin{tabular}")[2]
    assert "& average & base & novel & harmonic & gAcc &" in summary
    cells = next(line for line in summary.splitlines() if line.startswith("cec &")).split(" & ")
    mean, std = np.mean(plain.average), np.std(plain.average, ddof=1)
    assert cells[2] == f"{mean:.2f}\\,{{\\scriptsize$\\pm${std:.2f}}}"
    assert cells[-1] == "1250\\,{\\scriptsize$\\pm$71} \\\\"
    assert (
        "% 2 runs took over stage 1 from another run; the seconds of training it are included"
        in summary
    )


def test_views_averaged_at_test_time_are_named_in_every_format(make_result):
    plain = make_result(seeds=(0, 1))
    assert plain.test_views == (1.0, 1.0), "an older result has no record of them"
    two = dataclasses.replace(plain, extra={"test_views": ((2.0,) * 9,) * 2})
    assert "views" not in build([plain]).rows[0].detail
    table = build([two])
    assert table.rows[0].detail == "2 seeds, 2 test views"
    assert "2 test views" in to_markdown(table)
    for result, views in ((plain, 1), (two, 2)):
        [row, _] = csv.DictReader(io.StringIO(to_csv([build([result])])))
        assert float(row["views"]) == views
        summary = to_latex(build([result])).rpartition("\\begin{tabular}")[2]
        assert "& views $\\downarrow$ & images kept $\\downarrow$ \\\\" in summary
        line = next(line for line in summary.splitlines() if line.startswith("cec &"))
        assert line.split(" & ")[-2] == str(views)
    pooled = merge([two, dataclasses.replace(two, seeds=(2, 3))])
    assert pooled.test_views == (2.0,) * 4


def test_a_method_that_keeps_nothing_keeps_no_image_and_an_uncounted_one_is_unknown(make_result):
    plain = make_result()
    assert plain.images_kept == (0.0,)
    assert dataclasses.replace(plain, keeps="every image").images_kept == (None,)
    assert make_result(sessions=1).mean_forgetting == (None,)


# Seconds


def test_a_shared_stage_1_is_noted_and_its_seconds_are_counted(make_result):
    wall_clock = ("share of the wall clock", 12.0)
    own = make_result("glyphs", "linear", seconds=(("pretrain", 10.0), wall_clock))
    shared = make_result("glyphs", seeds=(0, 1), seconds=(("pretrain (shared)", 28.0), wall_clock))
    assert own.total_seconds == (12.0,)
    assert shared.total_seconds == (40.0, 40.0)
    assert seconds_text(own) == "12"
    busy = replace(own, machine={**own.machine, "beside other work": True})
    assert seconds_text(busy) == "12 (beside other work)"
    assert seconds_text(shared) == "40 (stage 1 shared)"
    note = "2 runs took over stage 1 from another run; the seconds of training it are included"
    table = build([own, shared])
    assert note in table.notes
    assert note in to_markdown(table)
    assert f"% {note}" in to_latex(table).splitlines()
    assert not any("stage 1" in text for text in build([own]).notes)


def test_a_stage_1_that_was_shared_by_runs_side_by_side_counts_its_share(make_result):
    """Of five runs side by side, one that trains stage 1 is charged a fifth of what elapses."""
    seconds = (("pretrain (shared)", 100.0), ("share of the wall clock", 4.0))
    result = make_result("glyphs", seconds=seconds, machine={"side_by_side": 5})
    assert result.total_seconds == (24.0,)


def test_runs_without_times_have_no_seconds(make_result):
    assert make_result().total_seconds == (None,)
    assert seconds_text(make_result()) == "–"


def test_users_methods_are_named_as_not_examined(make_result):
    own = make_result("glyphs", method="mine.py:Mine")
    packaged = make_result("glyphs", "packaged", machine={"method_source": {"file": "x.py"}})
    assert build([own, make_result("glyphs")]).notes == (
        "mine.py:Mine is a user's method, not known to have passed the exam: "
        "fewmore exam mine.py:Mine checks it",
    )
    source = {"file": "/a b/mine.py", "named": "a b/mine.py:Mine"}
    named = make_result("glyphs", "mine", machine={"method_source": source})
    assert build([named]).notes[0].endswith("fewmore exam 'a b/mine.py:Mine' checks it")
    both = build([named, packaged]).notes[0]
    assert both.endswith("fewmore exam 'a b/mine.py:Mine' x.py:CLASS checks them")
    other = make_result("glyphs", "mine", machine={"method_source": {"named": "b.py:Mine"}})
    assert build([named, other]).notes[0] == (
        "mine is a user's method, not known to have passed the exam: "
        "fewmore exam 'a b/mine.py:Mine' b.py:Mine checks them"
    )
    assert "mine.py:Mine, packaged are users' methods, not" in build([own, packaged]).notes[0]
    assert build([make_result("glyphs")]).notes == ()


def test_versions_of_a_benchmark_are_not_compared_unnoticed(make_result):
    def of(digest, method):
        source = {"benchmark_source": {"file": "/photos", "sha256": digest * 64}}
        return make_result("folder:photos", method, seeds=(0, 1), machine=source)

    old, new, other = of("1", "cec"), of("2", "cec"), of("2", "topic")
    note = "rows name several versions of folder:photos: their images may differ"
    assert note in build([old, other]).notes
    assert note not in build([new, other]).notes
    with pytest.raises(ConfigError, match=r"are of different versions of folder:photos"):
        paired.build([old, other])
    [last, _] = paired.build([new, other, old])
    assert [name for name, _ in last.rows] == ["topic, photos (sha256 22222222)"]
    assert "cec, photos (sha256 11111111) and cec" in last.notes[0]


# ---- stage 1, nothing learnt


def test_nothing_learnt_is_the_base_session_among_all_test_images(make_result):
    topic = make_result(method="topic", seeds=(0, 1))
    cec = make_result(method="cec", skill=0.9)
    first, *others = build([cec, topic], with_nothing_learnt=True).rows
    assert others == list(build([cec, topic]).rows), "the other rows are the same"
    assert first.full_label == ("stage 1, nothing learnt (computed from the base session of topic)")
    assert first.source == "computed"
    base = np.array([run[0] for run in topic.accuracy])
    shares = [60 / classes for classes in range(60, 101, 5)]
    assert [cell.mean for cell in first.cells[:9]] == pytest.approx(
        [base.mean() * s for s in shares]
    )
    assert first.cells[8].std == pytest.approx(base.std(ddof=1) * 0.6)
    summary = dict(zip(SUMMARY, first.cells[9:], strict=True))
    assert summary["average"].mean == pytest.approx(base.mean() * np.mean(shares))
    assert summary["PD"].mean == pytest.approx(base.mean() * 0.4)
    assert summary["base"].mean == pytest.approx(base.mean())
    assert (summary["novel"].mean, summary["harmonic"].mean) == (0, 0)


def test_nothing_learnt_has_the_gacc_of_such_predictions():
    session_of_class = np.repeat(np.arange(5), [10, 3, 3, 3, 3])
    labels = np.repeat(np.arange(22), 4)
    right = np.arange(len(labels)) % 4 > 0
    predictions = np.full((5, len(labels)), -1)
    for session in range(5):
        arrived = session_of_class[labels] <= session
        base = right & (labels < 10)
        predictions[session, arrived] = np.where(base, labels, (labels + 1) % 10)[arrived]
    summary = metrics.summarize(labels, session_of_class, predictions)
    run = results.Run(0, None, summary, {}, 1.0)
    sizes = [results.SessionSize(10 + 3 * i, 40 + 12 * i) for i in range(5)]
    about = {"benchmark": "tiny", "method": "finetune", "recipe": None, "split": "official"}
    source = results.gather([run], sessions=sizes, command="", **about)
    computed = nothing_learnt.nothing_learnt(source)
    assert computed.gacc == pytest.approx(source.gacc)
    np.testing.assert_allclose(computed.accuracy, source.accuracy)
    assert [run[1:] for run in computed.novel] == [run[1:] for run in source.novel]


def test_nothing_learnt_needs_the_base_session_of_stage_1_alone(make_result):
    own = make_result(method="topic", machine={"method_source": {"file": "topic.py"}})
    one_session = make_result(method="topic", sessions=1)
    for alone in (make_result(method="cec"), make_result(method="joint"), own, one_session):
        sources = {row.source for row in build([alone], with_nothing_learnt=True).rows}
        assert "computed" not in sources
    weak, strong = make_result(method="topic", skill=0.2), make_result(method="eeil", skill=0.7)
    assert nothing_learnt.source_of([weak, strong]) is strong
    other = make_result(method="eeil", skill=0.9, settings={"features": "closer"})
    assert nothing_learnt.source_of([weak, strong, other]) is strong
    assert nothing_learnt.source_of([]) is None


def test_nothing_learnt_is_explained_below_the_table(make_result):
    topic = [make_result(method="topic")]
    notes = build(topic, with_nothing_learnt=True).notes
    assert nothing_learnt.NOTE in notes
    assert "the base classifier without new classes, a lower bound" in nothing_learnt.NOTE
    assert nothing_learnt.NOTE not in build(topic).notes


def test_nothing_learnt_in_every_format(make_result):
    both = [make_result(method="cec", skill=0.9), make_result(method="topic")]
    table = build(both, improvement_of="cec", with_nothing_learnt=True)
    computed, cec = table.rows[:2]
    pd = table.columns.index("PD")
    assert computed.cells[-1].mean == pytest.approx(computed.cells[pd].mean - cec.cells[pd].mean)
    line = next(csv.DictReader(io.StringIO(to_csv([table]))))
    assert (line["method"], line["source"]) == ("stage 1, nothing learnt", "computed")
    assert line["images_kept"] == ""
    assert "\\textit{stage 1, nothing learnt}" in to_latex(table)
    assert "| stage 1, nothing learnt (computed from the base session of topic) |" in to_markdown(
        table
    )
