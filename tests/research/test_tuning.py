"""Test searches: what is tried, on which images, and what is recorded."""

import json
import re
from pathlib import Path

import pytest
import torch

from fewmore.errors import ConfigError, DataError, MethodError, MissingData, UnknownName
from fewmore.research import recipes, results, runner, tuning
from fewmore.research.experiment import Experiment
from fewmore.research.reporting import figures
from fewmore.research.results import SHARED_STAGE1
from fewmore.research.runner import RunOptions, Watcher
from fewmore.research.tuning import Range, Record, Search, Trial, Values
from fewmore.research.tuning.space import all_trials, random_trials
from fewmore.research.validation import validation_task

SMALL = (
    "backbone=resnet8",
    "transform.size=8",
    "transform.resize=9",
    "pretrain.epochs=2",
    "pretrain.batch=10",
)


@pytest.fixture
def search(tiny_folder):
    """Return the function (space, **fields) -> Search of decoupled-cosine on small images."""

    def search(space: dict, **fields: object) -> Search:
        settings = (*SMALL, *fields.pop("settings", ()))
        defaults = {"split": {"shot": 2}, "settings": settings}
        return Search(f"folder:{tiny_folder}", "decoupled-cosine", space, **{**defaults, **fields})

    return search


@pytest.fixture
def recipe():
    from fewmore.data import benchmarks

    return recipes.recipe("quick", benchmarks.find("glyphs"), "cec")


def record_of(scores: dict[str, list[float]], space: dict[str, str] | None = None) -> Record:
    """Make a record of one setting `a` from the scores of each value."""
    trials = tuple(
        Trial(
            number,
            {"a": text},
            {name: tuple(values) for name in (*tuning.MEASURES, "pd", "forgetting", "gacc")},
        )
        for number, (text, values) in enumerate(scores.items(), 1)
    )
    about = {
        "benchmark": "glyphs",
        "method": "mine.py:Mine",
        "recipe": None,
        "settings": ["pretrain.epochs=5"],
        "space": space or {"a": ",".join(scores)},
        "seeds": [0],
        "draws": [0],
        "split": {"shot": 2},
    }
    return Record(about, "last", "validation, draw 0", "fewmore tune", None, "now", {}, trials)


# What is tried


def test_a_grid_is_all_combinations():
    space = dict([tuning.parse_values("a=1,2"), tuning.parse_values("b=x,(3,4)")])
    assert all_trials(space) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "3,4"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "3,4"},
    ]
    assert str(space["b"]) == "x,(3,4)", "it can be parsed again"


def test_values_from_python_are_texts_as_set_takes_them():
    assert Values.of([0.1, True, None, (60, 70), 0.1]).texts == ("0.1", "true", "none", "60,70")


@pytest.mark.parametrize("text", ["a", "a=", "=1", ""])
def test_values_that_are_none(text):
    with pytest.raises(ConfigError, match="write it as name=value,value"):
        tuning.parse_values(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1,2", "write it as name=low..high"),
        ("a=1..x", "write it as name=low..high"),
        ("=1..2", "write it as name=low..high"),
        ("a=exp:1..2", "write it as name=low..high"),
        ("a=2..1", "from a smaller number to a larger"),
        ("a=1..1", "from a smaller number to a larger"),
        ("a=1..inf", "from a smaller number to a larger"),
        ("a=log:0..1", "begins above 0"),
    ],
)
def test_ranges_that_cannot_be(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        tuning.parse_range(text)
    assert str(caught.value).startswith(f"--range {text}: ")


def test_a_range_needs_a_number_of_trials():
    with pytest.raises(ConfigError, match="--random 20"):
        all_trials({"a": Range(0, 1)})


def test_random_trials_are_in_their_ranges_and_differ(recipe):
    space = {
        "pretrain.lr": Range(0.001, 0.1, log=True),
        "pretrain.epochs": Range(2, 5),
        "pseudo.scale": Range(0, 1),
        "pretrain.mix": Values(("none", "mixup")),
    }
    trials = random_trials(space, 200, 0, recipe)
    assert len(trials) == len({tuple(trial.items()) for trial in trials}) == 200
    rates = [float(trial["pretrain.lr"]) for trial in trials]
    assert 0.001 <= min(rates) < 0.002 < 0.05 < max(rates) <= 0.1
    assert 70 < sum(rate < 0.01 for rate in rates) < 130, "evenly by the logarithm"
    assert {trial["pretrain.epochs"] for trial in trials} == {"2", "3", "4", "5"}
    assert any(0 < float(trial["pseudo.scale"]) < 1 for trial in trials), "not whole numbers"
    assert {trial["pretrain.mix"] for trial in trials} == {"none", "mixup"}
    assert random_trials(space, 200, 0, recipe) == trials
    assert random_trials(space, 200, 1, recipe) != trials


def test_whole_numbers_are_within_their_range(recipe):
    trials = random_trials({"cec.pseudo.episodes": Range(0.5, 3.5)}, 3, 0, recipe)
    assert {trial["cec.pseudo.episodes"] for trial in trials} == {"1", "2", "3"}
    [trial] = random_trials({"cec.pretrain.epochs": Range(5, 20)}, 1, 0, recipe)
    assert trial["cec.pretrain.epochs"].isdecimal(), "of the common settings too"


def test_recipes_of_a_search_know_its_sessions():
    search = Search("cifar100", "fact", {"pretrain.lr": [0.1]}, split={"base": 40, "way": None})
    assert search.plain_recipe().pretrain.virtual == 60
    assert search.experiment({"pretrain.lr": "0.1"}).recipe.pretrain.virtual == 60


def test_a_value_may_have_two_dots():
    record = record_of({}, {"weights": "../a.pth,../b.pth", "lr": "log:0.001..0.1"})
    space = tuning.summary.space_of(record)
    assert space["weights"] == Values(("../a.pth", "../b.pth"))
    assert space["lr"] == Range(0.001, 0.1, log=True)


def test_features_of_a_file_are_part_of_a_search(search, tmp_path):
    file = tmp_path / "mine.py"
    text = "from dataclasses import dataclass\n"
    text += "from fewmore.training.pretrain import PretrainConfig\n\n\n"
    text += '@dataclass(frozen=True)\nclass Mine(PretrainConfig):\n    """Learn as always."""\n'
    searches = []
    for ending in ("", "# edited\n"):
        file.write_text(text + ending)
        settings = (f"features={file}:Mine",)
        searches.append(search({"pretrain.lr": [0.1]}, settings=settings).to_dict())
    hashes = {each["features_source"]["sha256"] for each in searches}
    assert len(hashes) == 2
    assert "features_source" not in search({"pretrain.lr": [0.1]}).to_dict()


def test_there_may_be_fewer_combinations_than_asked_for(recipe):
    assert len(random_trials({"pretrain.epochs": Range(1, 3)}, 20, 0, recipe)) == 3


# What a search does


class Tasks(Watcher):
    """Keep the tasks that runs are about."""

    def __init__(self) -> None:
        self.seen: list = []

    def on_task(self, task: object) -> None:
        self.seen.append(task)


def test_a_search_never_sees_test_images_or_new_classes(search, tmp_path, monkeypatch):
    loaded = []
    real = runner.load_task

    def load_task(*arguments, **options):
        loaded.append(real(*arguments, **options))
        return loaded[0]

    monkeypatch.setattr(runner, "load_task", load_task)
    tasks = Tasks()
    record = tuning.tune(
        search({"pretrain.lr": [0.01, 0.1]}), tmp_path, watcher_of=lambda trial: tasks
    )
    [task] = loaded
    base = task.split.sessions[0].select_from(task.train)
    allowed = {base.image(i).numpy().tobytes() for i in range(len(base))}
    assert len(tasks.seen) == 2
    for seen in tasks.seen:
        for images in (seen.train, seen.test):
            assert {images.image(i).numpy().tobytes() for i in range(len(images))} <= allowed
        assert seen.train.class_names == base.class_names
        expected = validation_task(task)
        assert torch.equal(seen.test.labels, expected.test.labels)
    assert record.split == "validation, draw 0: 3 base, 1-way 2-shot"


def test_a_search_records_all_trials_and_chooses_the_best(search, tmp_path):
    space = {"pretrain.lr": [0.0001, 0.05], "similarity": ["cosine", "l2"]}
    options = RunOptions(command="fewmore tune …", stage1_cache=tmp_path / "stage1")
    options.stage1_cache.mkdir()
    record = tuning.tune(search(space, seeds=(0, 1)), tmp_path / "tune", "average", options)
    [folder] = (tmp_path / "tune").iterdir()
    assert tuning.read(folder) == record
    raw = json.loads((folder / "search.json").read_text())
    assert raw["best"] == record.best.number
    assert raw["command"] == "fewmore tune …"
    assert {"device", "threads", "torch"} <= set(raw["machine"])
    assert "commit" in raw
    assert raw["search"]["space"] == {"pretrain.lr": "0.0001,0.05", "similarity": "cosine,l2"}
    assert [trial.settings["pretrain.lr"] for trial in record.trials] == [
        "0.0001",
        "0.0001",
        "0.05",
        "0.05",
    ]
    for trial in record.trials:
        result = results.read(folder / trial.folder)
        assert trial.values("last") == pytest.approx(result.last, abs=1e-4)
        assert trial.values("novel") == pytest.approx([run[-1] for run in result.novel], abs=1e-4)
        assert result.split.startswith("validation, draw 0")
        assert result.seeds == (0, 1)
        assert result.settings["similarity"] == trial.settings["similarity"]
        assert set(trial.measures) == {*tuning.MEASURES, "pd", "forgetting", "gacc"}
        config = (folder / trial.folder / "config.json").read_text()
        assert Experiment.from_json(config).validation
    means = [trial.mean("average") for trial in record.ranked]
    assert means == sorted(means, reverse=True)


def test_settings_of_later_stages_share_stage_1(search, tmp_path):
    options = RunOptions(stage1_cache=tmp_path / "stage1")
    options.stage1_cache.mkdir()
    # Settings of the sessions are no part of stage 1's, and decoupled methods train in no session.
    found = search({"session.epochs": [1, 2]})
    tuning.tune(found, tmp_path / "tune", options=options)
    [folder] = (tmp_path / "tune").iterdir()
    shared = [SHARED_STAGE1 in results.read(path).seconds[0] for path in folder.glob("trial*")]
    assert sorted(shared) == [False, True]
    assert len(list((tmp_path / "stage1").glob("*.safetensors"))) == 1


def test_several_draws_of_the_shots(search, tmp_path):
    record = tuning.tune(search({"pretrain.lr": [0.05]}, draws=(0, 1)), tmp_path)
    [folder] = tmp_path.iterdir()
    result = results.read(folder / "trial1")
    assert result.draws == (0, 1)
    assert result.split == record.split == "validation, 2 draws: 3 base, 1-way 2-shot"
    assert len(record.best.values("last")) == 2


@pytest.fixture
def fails_at(monkeypatch):
    """Let the runs with one learning rate fail."""

    def fails_at(rate: float, error: BaseException) -> None:
        from fewmore.methods.decoupled import Decoupled

        real = Decoupled.learn

        def learn(self, session):
            if self.recipe.pretrain.lr == rate:
                raise error
            return real(self, session)

        monkeypatch.setattr(Decoupled, "learn", learn)

    return fails_at


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MethodError("it gave no scores"), "it gave no scores"),
        (ValueError("a\nb"), "decoupled-cosine fails in session 1 of seed"),
    ],
)
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_failed_trial_is_recorded_and_the_search_goes_on(
    search, tmp_path, fails_at, error, sentence, parallel
):
    fails_at(0.02, error)
    found = search({"pretrain.lr": [0.02, 0.05]}, seeds=(0, 1))
    record = tuning.tune(found, tmp_path, options=RunOptions(parallel=parallel))
    first, second = record.trials
    assert first.error.startswith(sentence)
    assert isinstance(error, MethodError) or "ValueError: a (" in first.error
    assert first.measures == {}
    assert second.error is None
    assert len(second.values("last")) == 2
    assert record.best == second
    assert record.failed == [first]
    [folder] = tmp_path.iterdir()
    assert tuning.read(folder) == record
    notes = tuning.grid_of_trials(record).notes
    assert any(note.startswith(f"failed: pretrain.lr=0.02: {sentence}") for note in notes)


def test_an_interrupted_search_leaves_its_record_and_resumes(
    search, tmp_path, fails_at, monkeypatch
):
    found = search({"pretrain.lr": [0.01, 0.02]})
    fails_at(0.02, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(found, tmp_path)
    [folder] = tmp_path.iterdir()
    left = tuning.read(folder)
    assert [bool(trial.measures) for trial in left.trials] == [True, False]
    assert any("1 of 2 trials have not been run" in n for n in tuning.grid_of_trials(left).notes)
    monkeypatch.undo()
    begun = []
    result = (folder / "trial1" / "result.json").read_bytes()
    record = tuning.tune(
        found, tmp_path, resume=True, on_begin=lambda place, known: begun.append((place, known))
    )
    assert begun[0][0] == folder
    assert [bool(trial.measures) for trial in begun[0][1].trials] == [True, False]
    assert all(trial.measures for trial in record.trials)
    assert record.trials[0].measures == left.trials[0].measures
    assert (folder / "trial1" / "result.json").read_bytes() == result, "not run again"


def test_a_finished_search_can_be_ranked_by_another_measure(search, tmp_path, monkeypatch):
    found = search({"pretrain.lr": [0.01, 0.05]})
    record = tuning.tune(found, tmp_path)
    monkeypatch.setattr(runner, "load_task", None)
    again = tuning.tune(found, tmp_path, "novel", resume=True)
    assert again.trials == record.trials
    assert again.by == "novel"
    [folder] = tmp_path.iterdir()
    assert tuning.read(folder).by == "novel"


def test_another_search_does_not_resume_this_one(search, tmp_path):
    tuning.tune(search({"pretrain.lr": [0.01]}), tmp_path)
    tuning.tune(search({"pretrain.lr": [0.02]}), tmp_path, resume=True)
    assert len(list(tmp_path.iterdir())) == 2


def test_wrong_names_and_values_are_refused_before_anything_runs(search, tmp_path):
    with pytest.raises(UnknownName, match="lrr"):
        tuning.tune(search({"pretrain.lrr": [1]}), tmp_path)
    with pytest.raises(UnknownName, match="measure"):
        tuning.tune(search({"pretrain.lr": [0.1]}), tmp_path, "best")
    with pytest.raises(ConfigError, match=r"--set pretrain\.lr=fast"):
        tuning.tune(search({"pretrain.lr": [0.1, "fast"]}), tmp_path)
    with pytest.raises(ConfigError, match="nothing to try"):
        tuning.tune(search({}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_snippet_of_the_page_runs(tiny_folder, tmp_path, monkeypatch, capsys):
    """Run it on small images, with fewer trials and a smaller network."""
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    [snippet] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    changes = {
        '"glyphs"': f'"folder:{tiny_folder}"',
        "random=8": f'random=2, settings={SMALL}, split={{"shot": 2}}',
    }
    for old, new in changes.items():
        assert old in snippet
        snippet = snippet.replace(old, new)
    names: dict[str, object] = {}
    exec(compile(snippet, "tuning.md", "exec"), names)
    out = capsys.readouterr().out
    assert out.startswith(str(names["record"].best.settings))
    assert "fewmore run folder:" in out


# What is made of it


def test_the_best_at_an_edge_is_told():
    scores = {"1": [50.0], "2": [60.0], "3": [70.0]}
    [note] = tuning.edge_notes(record_of(scores))
    assert note.startswith("a=3 is at the upper edge of what was tried (1,2,3): try larger")
    scores = {"1": [50.0], "2": [80.0], "3": [70.0]}
    assert tuning.edge_notes(record_of(scores)) == []
    [note] = tuning.edge_notes(record_of({"0.0015": [50.0]}, {"a": "log:0.001..1"}))
    assert "lower edge of what was tried (log:0.001..1): try smaller" in note
    assert tuning.edge_notes(record_of({"0.03": [50.0]}, {"a": "log:0.001..1"})) == []
    assert tuning.edge_notes(record_of({"x": [50.0], "y": [60.0]})) == [], "not numbers"


def test_the_table_is_sorted_and_says_what_cannot_be_told_apart():
    record = record_of({"1": [50.0, 52.0], "2": [60.0, 62.0], "3": [59.9, 60.5]})
    grid = tuning.grid_of_trials(record)
    assert [name for name, _ in grid.rows] == ["a=2", "a=3", "a=1"]
    assert grid.columns[0] == "last"
    assert [cells[0].mean for _, cells in grid.rows] == pytest.approx([61.0, 60.2, 51.0])
    assert "validation, draw 0" in grid.title
    assert any("1 more trial is within one standard deviation" in note for note in grid.notes)
    alone = tuning.grid_of_trials(record_of({"1": [50.0]}))
    assert any("how much runs differ is not known" in note for note in alone.notes)


def test_the_command_of_the_best_can_be_typed():
    record = record_of({"60,70": [50.0], "1": [40.0]}, {"a": "(60,70),1"})
    assert tuning.command_of_best(record) == (
        "fewmore run glyphs -m mine.py:Mine --shot 2 --set pretrain.epochs=5 --set a=60,70"
    )


def test_a_figure_of_numbers_and_names(tmp_path):
    record = record_of({"0.1": [50.0], "10": [60.0], "none": [55.0]})
    figure = figures.trials_figure(record)
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "10", "none"]
    numbers = figures.trials_figure(record_of({"0.1": [50.0], "10": [60.0]}))
    assert numbers.axes[0].get_xscale() == "log"
    assert len(numbers.axes[0].lines) == 2
    written = figures.save(figure, tmp_path / "trials")
    assert all(path.stat().st_size for path in written)


def test_a_record_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingData, match=r"search\.json is not there"):
        tuning.read(tmp_path)
    for text in ("{", "[]", '{"tuning": 9}', '{"tuning": 1, "best": 1, "trials": [{}]}'):
        (tmp_path / "search.json").write_text(text)
        with pytest.raises(DataError, match="not the record of a search"):
            tuning.read(tmp_path)
