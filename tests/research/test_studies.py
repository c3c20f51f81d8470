"""Test the experiments behind the paper's tables and figures, and what is drawn from them."""

import csv
import dataclasses

import pytest

from fewmore.data.benchmarks import BENCHMARKS, Task
from fewmore.data.splits import sample_split
from fewmore.errors import ConfigError, UnknownName
from fewmore.research import recipes, results, run_folder, runner, studies
from fewmore.research.experiment import Experiment
from fewmore.research.published import METHOD_OF_ABLATION, ROW_OF_METHOD
from fewmore.research.reporting.figures import files as figure_files
from fewmore.research.reporting.nothing_learnt import NAME as NOTHING_LEARNT
from fewmore.research.runner import Plan, RunOptions
from fewmore.research.studies import STUDIES, Finished, Setting
from fewmore.research.studies.rotation import ANGLES
from fewmore.research.studies.ways_shots import GRID


@pytest.fixture(scope="module")
def roomy(tiny_images):
    """Make a task whose base session is large enough for every episode of a benchmark."""
    train = tiny_images(45, 31)
    return Task(
        dataclasses.replace(BENCHMARKS["cifar100"], classes=45, base=40),
        train,
        train,
        sample_split(train, 40, 5, 5),
    )


@pytest.fixture
def setting(tiny_task, small_recipe, monkeypatch):
    """Return the setting of a study whose stages take no time."""
    monkeypatch.setitem(
        recipes.RECIPES,
        "quick",
        lambda b, method, features: small_recipe("official", b, method),
    )
    return Setting("tiny", tiny_task, "quick", quick=True)


@pytest.fixture
def reproduce(setting, tmp_path, monkeypatch):
    """Return a function that runs a study and draws it; it returns its folder and its table."""
    monkeypatch.setattr(figure_files, "FORMATS", (".svg",))  # the other formats take time

    def reproduce(name, setting=setting, only=None):
        study = STUDIES[name]
        plans = {
            label: Plan(experiment, run_folder.create(tmp_path / "runs", experiment))
            for label, experiment in study.experiments(setting).items()
            if only is None or label in only
        }
        options = RunOptions(command="fewmore reproduce", stage1_cache=tmp_path / "stage1")
        measured = runner.run_plans(list(plans.values()), setting.task, options)
        finished = {
            label: Finished(plan.experiment, plan.folder, result)
            for (label, plan), result in zip(plans.items(), measured, strict=True)
        }
        out = tmp_path / name
        return out, studies.write(study, setting, finished, out)

    return reproduce


# Experiments


def test_the_comparison_has_the_papers_rows_and_the_reference(roomy):
    assert list(STUDIES["comparison"].experiments(Setting("cifar100", roomy))) == [
        *ROW_OF_METHOD,
        "joint",
    ]
    assert list(
        STUDIES["comparison"].experiments(Setting("cifar100", roomy, "quick", quick=True))
    ) == list(ROW_OF_METHOD)


def test_an_experiment_is_that_of_the_plain_command(roomy):
    """Then what `fewmore run` has done is not done again."""
    found = STUDIES["comparison"].experiments(Setting("cifar100", roomy, seeds=(0, 1)))
    assert found["cec"] == Experiment(
        "cifar100", "cec", recipes.official(BENCHMARKS["cifar100"], "cec"), {}, (0, 1)
    )


@pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))
def test_a_study_knows_how_many_experiments_it_has(roomy, study):
    assert len(study.experiments(Setting("cifar100", roomy))) == study.size


def test_the_ablation_has_the_papers_ten_rows_and_one_more(roomy):
    found = list(STUDIES["ablation"].experiments(Setting("cifar100", roomy)).items())

    def has_data_init(config):
        return not hasattr(config, "session") or config.session.data_init

    made = [(one.method, has_data_init(one.recipe.method)) for _, one in found]
    assert made == [*METHOD_OF_ABLATION, ("cec", True)]
    assert len({label for label, _ in found}) == len({one.to_json() for _, one in found}) == 11
    cec = [one.recipe.method for _, one in found[-3:]]
    assert [config.adapter.query_node for config in cec] == [True, True, False]
    assert [bool(config.pseudo.angles) for config in cec] == [False, True, True]


def test_rotations_go_both_ways(roomy):
    found = {
        label: one.recipe.method.pseudo.angles
        for label, one in STUDIES["rotation"].experiments(Setting("cifar100", roomy)).items()
    }
    assert list(found) == ["180°", "±90°", "±45°", "±20°", "±10°", "±5°", "90°, 180°, 270°"]
    assert found.pop("180°") == (180,)
    assert found.pop("90°, 180°, 270°") == (90, 180, 270)
    for label, angles in found.items():
        assert {angle % 360 for angle in angles} == {int(label[1:-1]), 360 - int(label[1:-1])}


def test_ways_and_shots_make_a_grid(roomy):
    found = STUDIES["ways-shots"].experiments(Setting("cifar100", roomy))
    assert len(found) == 25
    sizes = {
        (one.recipe.method.pseudo.sizes(base=True), one.recipe.method.pseudo.sizes(base=False))
        for one in found.values()
    }
    assert sizes == {((way, shot, 10), (way, shot, 10)) for way in GRID for shot in GRID}
    assert (
        len(
            {
                (one.recipe.pretrain, one.recipe.transform, one.recipe.backbone)
                for one in found.values()
            }
        )
        == 1
    ), "one stage 1"


def test_episodes_are_made_to_fit_a_small_base_session(tiny_task):
    # Four base classes with twelve images each.
    setting = Setting("tiny", tiny_task)
    assert setting.experiment("cec").recipe.method.pseudo.sizes(base=True) == (4, 1, 11)
    assert setting.experiment("cec-meta").recipe.method.pseudo.sizes(base=False) == (2, 1, 11), (
        "two groups of other classes"
    )
    assert setting.experiment("decoupled-cosine").settings == {}
    cells = STUDIES["ways-shots"].experiments(setting)
    assert list(cells) == ["1-way 1-shot", "1-way 5-shot", "1-way 10-shot"]
    assert [one.recipe.method.pseudo.base_query for one in cells.values()] == [10, 7, 2]


def test_unknown_studies_are_refused():
    with pytest.raises(UnknownName, match="did you mean comparison"):
        studies.find("comparisons")


# Drawings


def files(out):
    return {path.name for path in out.iterdir()}


def drawn(*names):
    return {*(f"{name}.svg" for name in names), "table.md", "table.csv", "table.tex", "results"}


def test_the_comparison_is_drawn(reproduce):
    out, table = reproduce("comparison")
    assert files(out) == drawn("sessions", "base-novel")
    assert [row.name for row in table.rows] == [NOTHING_LEARNT, *ROW_OF_METHOD]
    place, drop = table.columns.index("relative improvement"), table.columns.index("PD")
    own = table.rows[-1].cells[drop].mean
    assert table.rows[-1].cells[place].mean is None
    for row in table.rows[:-1]:
        if row.cells[place].mean is not None:
            assert row.cells[place].mean == pytest.approx(row.cells[drop].mean - own)
    written = {results.read(path).method for path in (out / "results").iterdir()}
    assert written == set(ROW_OF_METHOD)
    with (out / "table.csv").open() as file:
        methods = [row["method"] for row in csv.DictReader(file)]
    assert methods == [NOTHING_LEARNT, *ROW_OF_METHOD]


def test_the_ablation_is_drawn(reproduce):
    out, table = reproduce("ablation")
    assert files(out) == drawn("bars")
    first, *labels = [row.name for row in table.rows]
    assert first == NOTHING_LEARNT
    assert labels[:4] == ["Linear", "Linear, decoupled", "Cosine", "Cosine, decoupled"]
    assert labels[4:8] == [f"{name}+Data Init." for name in ("Linear", "L2", "DeepEMD", "Cosine")]
    assert labels[8:] == ["CEC, meta-learnt (no PIL)", "CEC", "CEC, no query node"]
    assert any(
        "CEC is Cosine+Data Init., decoupled, with adapter (AM) and PIL" in note
        for note in table.notes
    )
    assert ">CEC, no query node</text>" in (out / "bars.svg").read_text()
    assert len(labels) == len(list((out / "results").iterdir())) == 11


def test_rotations_are_drawn(reproduce):
    out, table = reproduce("rotation")
    assert files(out) == drawn("rotation")
    assert [row.name for row in table.rows] == list(ANGLES)
    svg = (out / "rotation.svg").read_text()
    assert all(
        f">{label}</text>" in svg
        for label in ("180°", "90°, 180°, 270° (CEC)", "tiny: 4 classes, then 2 sessions of 2")
    )
    assert r"$\pm$90$^\circ$" in (out / "table.tex").read_text()


def test_ways_and_shots_are_drawn(reproduce):
    out, grid = reproduce("ways-shots")
    assert files(out) == drawn("ways-shots")
    assert [name for name, _ in grid.rows] == ["1", "5", "10"]
    first = results.read(
        next(path for path in (out / "results").iterdir() if "base_shot-5" in path.name)
    )
    assert grid.rows[0][1][1].mean == pytest.approx(first.last[0], abs=1e-3)
    assert grid.rows[2][1][0].mean is None
    assert grid.notes[1].startswith("one run a cell")
    small = ", ".join(f"{way}-way {shot}-shot" for way in (5, 10) for shot in (1, 5, 10))
    assert grid.notes[2:] == (
        f"–: the base session is too small for {small}",
        "measured with recipe quick",
    )
    assert ">measured with recipe quick</text>" in (out / "ways-shots.svg").read_text()
    assert "measured with recipe quick" in (out / "table.md").read_text()
    assert (
        ">tiny: accuracy after the last session (%)</text>" in (out / "ways-shots.svg").read_text()
    )


def test_cells_that_were_not_run_are_told_from_those_that_cannot_be(reproduce, setting):
    setting = dataclasses.replace(setting, seeds=(0, 1))
    out, grid = reproduce("ways-shots", setting, ["1-way 1-shot", "1-way 10-shot"])
    assert grid.rows[0][1][1].mean is None
    assert grid.notes[-2] == "–: not run: 1-way 5-shot"
    assert "5-shot" not in grid.notes[-3].partition("5-way")[0], "it would have fitted"
    last = [results.read(path).last for path in (out / "results").iterdir()]
    apart = sum(abs(a - b) for a, b in last) / 2
    assert grid.notes[1] == f"2 runs a cell, two of which are {apart:.2f} points apart on average"
    assert f">{grid.notes[1]}</text>" in (out / "ways-shots.svg").read_text()


def test_confusion_is_drawn(reproduce, setting):
    out, grid = reproduce("confusion", dataclasses.replace(setting, seeds=(0, 1)))
    assert files(out) == drawn("confusion")
    assert [name for name, _ in grid.rows[:3]] == [
        "Decoupled-Cosine",
        "CEC without its adapter",
        "CEC",
    ]
    assert [name for name, _ in grid.rows[3:]] == [
        "CEC minus CEC without its adapter",
        "CEC minus Decoupled-Cosine",
    ]
    assert ">CEC minus CEC without its adapter</text>" in (out / "confusion.svg").read_text()
    for cell, with_adapter, without in zip(
        *(dict(grid.rows)[name] for name in (grid.rows[4][0], "CEC", "Decoupled-Cosine")),
        strict=True,
    ):
        assert cell.mean == pytest.approx(with_adapter.mean - without.mean)
        assert cell.std is not None
    for file in (out / "results").iterdir():
        result = results.read(file)
        row = next(
            cells
            for name, cells in grid.rows
            if name == {"cec": "CEC"}.get(result.method, "Decoupled-Cosine")
        )
        base, novel = (sum(run[-1] for run in runs) / 2 for runs in (result.base, result.novel))
        assert (row[0].mean, row[1].mean) == pytest.approx((base, novel), abs=1e-3), (
            "there are as many images of each class"
        )


def test_tsne_is_drawn(reproduce, tiny_task):
    out, grid = reproduce("tsne")
    assert files(out) == drawn("tsne")
    assert {name for name, _ in grid.rows} == set(tiny_task.test.class_names), (
        "there are no more than four of each"
    )
    assert all(-1 <= cells[0].mean <= 1 for _, cells in grid.rows)
    svg = (out / "tsne.svg").read_text()
    accuracy = grid.notes[0].partition(": ")[2]
    assert f">accuracy among these classes: {accuracy}</text>" in svg
    assert ">tiny: 4 base classes (dots) and 4 new ones (rings)</text>" in svg


def test_a_study_changes_settings_of_all_methods_that_have_them(roomy):
    setting = Setting("cifar100", roomy, settings=("pretrain.epochs=3", "pretrain.milestones=[]"))
    for experiment in STUDIES["ablation"].experiments(setting).values():
        assert experiment.recipe.pretrain.epochs == 3
        assert experiment.settings["pretrain.epochs"] == "3"
    setting = Setting("cifar100", roomy, settings=("pseudo.encoder=last",))
    for experiment in STUDIES["ablation"].experiments(setting).values():
        pseudo = getattr(experiment.recipe.method, "pseudo", None)
        assert experiment.settings.get("pseudo.encoder") == (None if pseudo is None else "last")
        assert pseudo is None or pseudo.encoder == "last"
    setting = Setting("cifar100", roomy, settings=("pseudo.encoders=last",))
    with pytest.raises(UnknownName, match="encoders"):
        STUDIES["ablation"].experiments(setting)


def test_results_that_no_study_wrote_are_not_replaced(reproduce, tmp_path, make_result):
    foreign = results.record(tmp_path / "results", make_result())
    with pytest.raises(ConfigError, match="results that are not of a study"):
        studies.check_out(tmp_path)
    assert foreign.exists()
    folder, _ = reproduce("tsne")
    studies.check_out(folder)


def test_what_is_not_the_default_is_said(setting):
    assert setting.remark == "measured with recipe quick"
    changed = dataclasses.replace(setting, settings=("pretrain.epochs=3",))
    assert changed.remark == "measured with recipe quick, pretrain.epochs=3"
    assert dataclasses.replace(setting, recipe=None).remark == ""
    assert dataclasses.replace(setting, benchmark="glyphs").remark == "", "its own recipe"
