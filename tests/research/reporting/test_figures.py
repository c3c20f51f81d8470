"""Test that figures show their numbers, name lines without overlap, and are reproducible."""

import subprocess
import sys
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fewmore.errors import ConfigError
from fewmore.research import published
from fewmore.research.reporting.figures import (
    bars_figure,
    base_novel_figure,
    confusion_figure,
    confusions_figure,
    points_figure,
    reliability_figure,
    run_figure,
    save,
    save_all,
    sessions_figure,
    to_svg,
    tsne_figure,
    ways_shots_figure,
)
from fewmore.research.reporting.figures.confusion import NAMED_CLASSES
from fewmore.research.reporting.figures.labels import spread_apart
from fewmore.research.reporting.figures.style import (
    FAINT,
    METHOD_COLORS,
    VERMILION,
    choose_looks,
)
from fewmore.research.reporting.figures.tsne import MARKER_POINTS


@pytest.fixture(scope="module")
def results(make_result):
    return [
        make_result(seeds=(0, 1, 2)),
        make_result(method="finetune", skill=0.1),
        make_result(method="decoupled-l2", skill=0.55),
    ]


def drawn(axes, color):
    """Return the lines of a color within the axes, without those that lead to a name."""
    return [
        line
        for line in axes.lines
        if line.get_color() == color and line.get_transform() == axes.transData
    ]


def texts_overlap(figure):
    FigureCanvasAgg(figure).draw()
    boxes = [text.get_window_extent() for axes in figure.axes for text in axes.texts]
    return any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_sessions_are_means_over_runs_with_a_band(results):
    figure = sessions_figure(results)
    (axes,) = figure.axes
    (line,) = drawn(axes, METHOD_COLORS["cec"])
    assert line.get_ydata() == pytest.approx(np.mean(results[0].accuracy, axis=0))
    assert len(axes.collections) == 1  # the only one with several runs
    band = axes.collections[0].get_paths()[0].vertices
    std = np.std(results[0].accuracy, axis=0, ddof=1)
    assert band[:, 1].max() == pytest.approx((np.mean(results[0].accuracy, axis=0) + std).max())
    assert [label.get_text() for label in axes.get_xticklabels()][:2] == ["0\n60", "1\n65"]
    assert axes.get_ylim()[0] == 0, "a line is below ten"
    assert axes.get_ylabel() == "accuracy over all seen classes (%)"
    assert axes.get_ylim()[1] >= band[:, 1].max()


def test_the_axis_shows_the_differences_and_says_where_it_begins(make_result):
    given = [make_result(skill=0.6), make_result(method="topic", skill=0.5)]
    (axes,) = sessions_figure(given).axes
    lowest = min(map(min, (result.accuracy[0] for result in given)))
    bottom = axes.get_ylim()[0]
    assert 0 < bottom <= lowest < bottom + 10
    assert axes.get_ylabel() == f"accuracy over all seen classes (%), from {bottom:.0f} %"


def test_published_rows_are_dashed_in_the_color_of_their_method(results):
    rows = published.published("cifar100")
    figure = sessions_figure(results, [rows["CEC"], published.later("cifar100")["FACT"]])
    (axes,) = figure.axes
    theirs, ours = drawn(axes, METHOD_COLORS["cec"])
    assert tuple(theirs.get_ydata()) == rows["CEC"].sessions
    assert theirs.is_dashed()
    assert not ours.is_dashed()
    assert theirs.get_linewidth() < ours.get_linewidth()
    (rings,) = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert rings.get_linestyle() == "None"
    assert (list(rings.get_xdata()), list(rings.get_ydata())) == ([0, 8], [74.6, 52.1])


def test_every_line_has_its_name_and_none_overlap(results):
    rows = [*published.published("cifar100").values(), *published.later("cifar100").values()]
    figure = sessions_figure(results, rows)
    named = {text.get_text() for text in figure.axes[0].texts}
    assert named == {
        "cec",
        "finetune (Ft-CNN), one run",
        "decoupled-l2, one run",
        *(f"{row.name}, published" for row in rows),
    }
    assert not texts_overlap(figure)


def test_rows_of_other_protocols_are_left_out(results):
    figure = sessions_figure(results, list(published.published("cub200").values()))
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "finetune, one run",
        "decoupled-l2, one run",
        "cec",
    ], "and so are their names"
    (axes,) = sessions_figure(results[1:]).axes
    names = {text.get_text() for text in axes.texts}
    assert names == {"finetune", "decoupled-l2"}, "none has several runs"


def test_base_and_novel_share_one_scale(results):
    figure = base_novel_figure(results)
    assert len(figure.axes) == 3
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    base, novel, harmonic = (
        drawn(axes, METHOD_COLORS["cec"])[0].get_ydata() for axes in figure.axes
    )
    assert base == pytest.approx(np.mean(results[0].base, axis=0))
    assert np.isnan(novel[0])
    assert np.isnan(harmonic[0])
    assert novel[1:] == pytest.approx(np.mean([row[1:] for row in results[0].novel], axis=0))
    assert harmonic[1:] == pytest.approx(np.mean([row[1:] for row in results[0].harmonic], axis=0))
    assert not texts_overlap(figure)


def test_a_base_session_alone_can_be_drawn(make_result, tmp_path):
    alone = [make_result(sessions=1)]
    for draw in (sessions_figure, base_novel_figure):
        assert save(draw(alone), tmp_path / "alone.png")[0].stat().st_size > 5000


def test_lines_of_one_method_differ_and_ten_lines_can_be_drawn(make_result):
    same = [make_result(recipe=f"r{i}", sessions=3) for i in range(10)]
    looks = choose_looks([one.method for one in same])
    assert looks[0].color == METHOD_COLORS["cec"]
    assert len({look.color for look in looks[:8]}) == 8
    assert len(set(looks)) >= 8
    assert not texts_overlap(sessions_figure(same))


def test_a_method_keeps_its_color_beside_others():
    alone, beside = (
        choose_looks(["decoupled-cosine"])[0],
        choose_looks(["mine", "cec", "decoupled-cosine"]),
    )
    assert alone.color == beside[2].color == METHOD_COLORS["decoupled-cosine"]
    assert beside[1].color == METHOD_COLORS["cec"]
    assert beside[0].color not in (beside[1].color, beside[2].color)


@pytest.mark.parametrize("draw", [sessions_figure, base_novel_figure])
def test_results_that_cannot_be_compared_are_refused(make_result, draw):
    with pytest.raises(
        ConfigError, match="given cifar100: 60 classes, then 8 sessions of 5, glyphs: 60 classes"
    ):
        draw([make_result(), make_result("glyphs")])
    with pytest.raises(ConfigError, match="was given none"):
        draw([])


def test_confusion_is_in_shares_of_the_true_class_with_lines_at_the_base():
    session_of_class = np.array([0, 0, 0, 1, 1, 2])
    confusion = np.diag([2, 4, 4, 4, 4, 0])
    confusion[0, 3] = 6
    figure = confusion_figure(confusion, session_of_class)
    axes = figure.axes[0]
    image = axes.images[0].get_array()
    assert image.shape == (5, 5)  # session 2 has not come
    assert image[0].tolist() == [25, 0, 0, 75, 0]
    edges = [line for line in axes.lines if line.get_color() == VERMILION]
    assert {tuple(line.get_ydata()) for line in edges} == {(2.5, 2.5), (0, 1)}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["base", "new"]
    assert axes.get_title(loc="left") == "5 classes, 3 of them base"


def test_confusion_draws_thin_lines_between_new_sessions():
    axes = confusion_figure(np.eye(6, dtype=int), np.array([0, 0, 0, 1, 1, 2])).axes[0]
    thin = [line for line in axes.lines if line.get_color() == FAINT]
    assert {tuple(line.get_ydata()) for line in thin} == {(4.5, 4.5), (0, 1)}


def test_confusion_names_classes_where_there_is_room():
    names = ["wren", "$odd$ and far too long a name", "owl"]
    figure = confusion_figure(np.eye(3, dtype=int), np.array([0, 0, 1]), "birds", names)
    for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        assert [label.get_text() for label in labels] == ["wren", "$odd$ and far too l…", "owl"]
        assert not any(label.get_parse_math() for label in labels)
    many = NAMED_CLASSES + 1
    crowded = confusion_figure(
        np.eye(many, dtype=int), np.zeros(many, dtype=int), "", [str(i) for i in range(many)]
    )
    assert [label.get_text() for label in crowded.axes[0].get_xticklabels()] == ["base"]


@pytest.mark.parametrize("classes", [5, 200, 400])
def test_every_class_has_three_pixels_or_more(classes):
    figure = confusion_figure(np.eye(classes, dtype=int), np.zeros(classes, dtype=int))
    width = figure.axes[0].get_position().width * figure.get_figwidth()
    assert width * 200 / classes >= 3, "figures are written with 200 dots an inch"


def test_confusion_of_the_wrong_size_is_refused():
    with pytest.raises(ConfigError, match="must be 3 × 3, not 2 × 2"):
        confusion_figure(np.eye(2, dtype=int), np.array([0, 0, 1]))
    with pytest.raises(ConfigError, match="must be 3 × 3, not 2 × 2"):
        confusions_figure(
            {"a": np.eye(3, dtype=int), "b": np.eye(2, dtype=int)}, np.array([0, 0, 1]), ("a", "b")
        )


def test_the_last_of_several_confusions_is_a_difference_that_is_white_where_there_is_none():
    without = np.array([[10, 0, 0], [0, 10, 0], [6, 0, 4]])
    adapted = np.array([[8, 0, 2], [0, 10, 0], [2, 0, 8]])
    figure = confusions_figure(
        {"plain": without, "without": without, "with": adapted},
        np.array([0, 0, 1]),
        ("with", "without"),
    )
    panels = [axes for axes in figure.axes if axes.images and axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == [
        "plain",
        "without",
        "with",
        "with minus without",
    ]
    (image,) = panels[-1].images
    assert image.get_array().tolist() == [[-20, 0, 20], [0, 0, 0], [-40, 0, 40]]
    assert image.norm(0) == pytest.approx(0.5)
    assert image.to_rgba(0)[:3] == (1, 1, 1)
    assert [image.norm(-40), image.norm(-10), image.norm(40)] == pytest.approx([0, 0.25, 1]), (
        "grows with the root, alike on both sides"
    )
    assert [text.get_text() for text in panels[-1].texts] == ["−10.0", "+10.0", "−40.0", "+40.0"], (
        "mean over the rows of a block"
    )
    bars = [axes.get_ylabel() for axes in figure.axes if axes not in panels]
    assert bars == ["share of the true class (%)", "difference (points)"]
    assert [axes.get_ylabel() for axes in panels] == ["true class", "", "true class", ""], (
        "two in a row"
    )
    for axes in panels:
        edges = [line for line in axes.lines if line.get_color() == VERMILION]
        assert {tuple(line.get_ydata()) for line in edges} == {(1.5, 1.5), (0, 1)}


def deviations(axes):
    """Return the ends of the error bars, by row."""
    return {
        float(y): (left, right)
        for bars in axes.collections
        for (left, y), (right, _) in bars.get_segments()
    }


@pytest.fixture(params=[(0,), (0, 1, 2)], ids=["one run", "several runs"])
def measured(make_result, request):
    return {
        "180°": make_result(seeds=request.param, skill=0.7),
        "±5°": make_result(seeds=request.param, skill=0.4),
    }


@pytest.mark.parametrize("draw", [bars_figure, points_figure])
def test_recipe_and_changed_settings_stand_above_averages_and_drops(make_result, draw):
    quick = make_result(recipe="quick", settings={"pretrain.epochs": "2"})
    heading = "60 classes, then 8 sessions of 5; measured with recipe quick, pretrain.epochs=2"
    texts = [text.get_text() for text in draw({"a": quick, "b": quick}).texts]
    assert f"{quick.benchmark}: {heading}" in texts


@pytest.mark.parametrize("draw", [bars_figure, points_figure])
def test_averages_and_drops_have_their_numbers_and_deviations_and_the_subject_is_colored(
    measured, draw
):
    figure = draw(measured, "±5°")
    for axes, field in zip(figure.axes, ("average", "pd"), strict=True):
        runs = [getattr(result, field) for result in measured.values()]
        means = np.mean(runs, axis=1)
        if draw is bars_figure:
            found = [(bar.get_width(), bar.get_facecolor()) for bar in axes.patches]
        else:
            found = [
                (line.get_xdata()[0], line.get_color())
                for line in axes.lines
                if line.get_marker() == "o"
            ]
        assert [mean for mean, _ in found] == pytest.approx(means)
        assert [matplotlib.colors.same_color(color, VERMILION) for _, color in found] == [
            False,
            True,
        ]
        assert [text.get_text() for text in axes.texts] == [f"{mean:.2f}" for mean in means]
        assert all(text.get_bbox_patch().get_facecolor()[:3] == (1, 1, 1) for text in axes.texts), (
            "no line runs through a number"
        )
        if len(runs[0]) == 1:
            assert not axes.collections, "a deviation needs several runs"
        else:
            for row, (mean, std) in enumerate(
                zip(means, np.std(runs, axis=1, ddof=1), strict=True)
            ):
                assert deviations(axes)[row] == pytest.approx((mean - std, mean + std))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(measured)
    assert figure.axes[0].yaxis_inverted(), "the first on top"
    assert not texts_overlap(figure)
    remark = " ".join(text.get_text() for text in figure.texts)
    assert ("one run each" in remark) != ("± one standard deviation over 3 runs" in remark)


def test_bars_begin_at_zero_and_points_where_the_data_do(make_result):
    given = {"a": make_result(seeds=(0, 1), skill=0.7), "b": make_result(seeds=(0, 1), skill=0.69)}
    assert [axes.get_xlim()[0] for axes in bars_figure(given).axes] == [0, 0]
    figure = points_figure(given)
    axes = figure.axes[0]
    lowest = min(np.mean(one.average) - np.std(one.average, ddof=1) for one in given.values())
    assert 30 < axes.get_xlim()[0] < lowest
    assert "do not begin at 0" in figure.texts[-1].get_text()
    FigureCanvasAgg(figure).draw()
    assert all(text.get_window_extent().x1 <= axes.bbox.x1 for text in axes.texts), (
        "numbers stay in their panel"
    )


def test_measures_of_other_benchmarks_are_refused(make_result):
    with pytest.raises(ConfigError, match="one figure shows results of one benchmark"):
        points_figure({"180°": make_result(), "±5°": make_result(benchmark="glyphs")})


@pytest.mark.parametrize(
    ("error", "framed"), [(np.nan, set()), (1.0, {(0, 1)}), (3.25, {(0, 1), (1, 1)})]
)
def test_the_grid_has_a_number_in_each_cell_and_frames_within_the_error_of_the_best(error, framed):
    accuracy = np.array([[40.0, 41.5, np.nan], [47.25, 44.0, 43.0]])
    figure = ways_shots_figure(accuracy, (1, 5), (1, 10, 20), "glyphs: accuracy", "a remark", error)
    (axes,) = figure.axes
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written == {
        (0, 0): "40.00",
        (1, 0): "41.50",
        (0, 1): "47.25",
        (1, 1): "44.00",
        (2, 1): "43.00",
    }
    assert {(x + 0.5, y + 0.5) for x, y in (frame.get_xy() for frame in axes.patches)} == framed
    assert axes.get_title(loc="left") == "glyphs: accuracy"
    assert figure.texts[0].get_text().splitlines()[0] == "a remark"
    assert ("framed" in figure.texts[0].get_text()) == bool(framed)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "10", "20"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "5"]


def test_a_grid_of_the_wrong_size_is_refused_and_an_empty_one_drawn():
    with pytest.raises(ConfigError, match="2 ways and 3 shots make a grid of 2 × 3, not 3 × 2"):
        ways_shots_figure(np.ones((3, 2)), (1, 5), (1, 10, 20), "", "")
    (axes,) = ways_shots_figure(np.full((1, 1), np.nan), (1,), (1,), "", "", 1.0).axes
    assert not axes.texts
    assert not axes.patches


def test_tsne_joins_the_weights_before_and_after_by_arrows(tmp_path):
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(3, 8)) * 4, np.repeat(np.arange(3), 12)
    points = centres[labels] + rng.normal(size=(36, 8))

    moved = centres.copy()
    moved[0] = (centres[0] + centres[2]) / 2

    def draw():
        return tsne_figure(
            points,
            labels,
            centres,
            moved,
            ["a $b", "c", "d"],
            2,
            "birds",
            "50 % before, 60 % after",
        )

    (axes,) = draw().axes
    assert axes.get_title(loc="left") == "birds: 2 base classes (dots) and 1 new ones (rings)"
    *arrows, remark = axes.texts
    assert remark.get_text() == "50 % before, 60 % after"
    assert [len(dots.get_offsets()) for dots in axes.collections] == [12, 12, 12]
    assert [len(dots.get_facecolors()) > 0 for dots in axes.collections] == [True, True, False], (
        "new classes have rings"
    )
    signs = {
        marker: [line.get_xydata()[0] for line in axes.lines if line.get_marker() == marker]
        for marker in "X^"
    }
    (arrow,) = arrows  # the others stand still, and an arrow would cover them
    assert arrow.xyann == pytest.approx(signs["X"][0])
    assert arrow.xy == pytest.approx(signs["^"][0])
    assert (
        np.linalg.norm(np.subtract(*(axes.transData.transform(sign[0]) for sign in signs.values())))
        > MARKER_POINTS
    )
    for number, dots in enumerate(
        axes.collections
    ):  # a class's weights lie nearest to its own images
        middles = np.stack([d.get_offsets().mean(0) for d in axes.collections])
        assert np.linalg.norm(middles - signs["X"][number], axis=1).argmin() == number
        assert dots.get_label() == ["a $b", "c", "d"][number]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "a $b",
        "c",
        "d",
        "weights before",
        "weights after",
    ]
    first, second = save(draw(), tmp_path / "one.svg"), save(draw(), tmp_path / "two.svg")
    assert first[0].read_bytes() == second[0].read_bytes()


def test_saving_gives_the_same_bytes_each_time_and_leaves_settings_alone(tmp_path, results):
    before = dict(matplotlib.rcParams)
    first = save(sessions_figure(results), tmp_path / "new" / "v1.0")
    second = save(sessions_figure(results), tmp_path / "again")
    assert [path.name for path in first] == ["v1.0.png", "v1.0.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert "decoupled-l2" in first[1].read_text()  # text stays text
    (pdf,) = save(sessions_figure(results), tmp_path / "one.pdf")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert dict(matplotlib.rcParams) == before


def test_pyplot_is_never_imported():
    figures = "fewmore.research.reporting.figures"
    code = f"import sys, {figures}; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@given(st.lists(st.floats(0, 100), max_size=12), st.floats(0.1, 20))
def test_names_are_apart_in_order_and_near_their_lines(values, gap):
    values = sorted(values)
    positions = spread_apart(values, gap, 0, 100)
    assert len(positions) == len(values)
    assert all(b - a >= gap - 1e-6 for a, b in pairwise(positions))
    if gap * (len(values) - 1) <= 100:
        assert all(-1e-6 <= y <= 100 + 1e-6 for y in positions)
    if all(b - a >= gap for a, b in pairwise(values)):
        assert positions == pytest.approx(values)


def test_a_run_has_its_measures_in_one_chart(make_result):
    result = make_result(seeds=(0, 1))
    rows = [published.published("cifar100")["CEC"]]
    (axes,) = run_figure(result, {"base": result.base, "new": result.novel}, rows).axes
    assert {text.get_text() for text in axes.texts} == {"base", "new", "published"}
    (base,) = drawn(axes, VERMILION)
    assert base.get_ydata() == pytest.approx(np.mean(np.array(result.base), axis=0))
    (dashed,) = drawn(axes, FAINT)
    assert tuple(dashed.get_ydata()) == rows[0].sessions


def test_reliability_is_the_accuracy_by_confidence():
    confidence = np.array([0.05, 0.15, 0.2, 0.95, 1.0, 1.0, 1.0])
    right = np.array([0, 1, 0, 1, 1, 1, 0])
    upper, lower = reliability_figure(confidence, right).axes
    heights = [bar.get_height() for bar in upper.patches]
    assert heights[:2] == [0, 50]
    assert heights[9] == 75
    assert np.isnan(heights[2:9]).all(), "no prediction, no bar"
    assert [bar.get_height() for bar in lower.patches][9] == pytest.approx(400 / 7)


def test_a_figure_for_a_page_has_no_size_and_no_background(results):
    svg = to_svg(sessions_figure(results))
    assert svg.startswith("<svg ")
    head = svg[: svg.index(">")]
    assert "viewBox" in head
    assert " width=" not in head
    assert " height=" not in head
    assert "<metadata>" not in svg
    assert "#ffffff" not in svg
    assert svg == to_svg(sessions_figure(results))


def test_all_formats_are_written(results, tmp_path):
    save_all(sessions_figure(results), tmp_path / "deep" / "one.two")
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == [
        "one.two.pdf",
        "one.two.png",
        "one.two.svg",
    ]
