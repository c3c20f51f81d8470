"""Test that results go to JSON and back unchanged, and that damaged files are refused."""

import json
import os
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewmore.errors import DataError, FewmoreError, MissingData
from fewmore.research import results
from fewmore.research.results import (
    RunResult,
    from_json,
    names,
    read,
    shared_settings,
    to_json,
    write,
)

KEYS = [
    "schema",
    "benchmark",
    "method",
    "recipe",
    "split",
    "command",
    "seeds",
    "draws",
    "commit",
    "date",
    "machine",
    "settings",
    "all_settings",
    "sessions",
    "accuracy",
    "base",
    "novel",
    "harmonic",
    "forgetting",
    "gacc",
    "seconds",
    "peak_memory_mb",
    "extra",
    "keeps",
]


@pytest.fixture(scope="module")
def result(make_result):
    return make_result(
        seeds=(0, 1),
        draws=(0, 1, 2),
        extra=("cosine_after_pil",),
        settings={"pretrain.lr": 0.00012345},
        all_settings={"pretrain.lr": "0.00012345", "backbone": "resnet20"},
        keeps="5 a class",
    )


@pytest.fixture(scope="module")
def raw(result):
    return json.loads(to_json(result))


def changed(raw, **new):
    return json.dumps({**raw, **new})


# Writing and reading


def test_gathering_runs_keeps_their_numbers(result):
    assert result.runs == 6
    assert result.seeds == (0, 0, 0, 1, 1, 1)
    assert result.draws == (0, 1, 2, 0, 1, 2)
    assert result.average == pytest.approx([np.mean(row) for row in result.accuracy])
    assert result.last == tuple(row[-1] for row in result.accuracy)
    assert result.pd == pytest.approx([row[0] - row[-1] for row in result.accuracy])
    assert all(row[0] is None and None not in row[1:] for row in (*result.novel, *result.harmonic))
    assert all(len(row) == 8 for row in result.forgetting)


def test_keys_are_all_there_in_one_order(raw):
    assert list(raw) == KEYS


def test_numbers_are_short_but_settings_are_whole(raw):
    assert raw["accuracy"][0][1] == round(raw["accuracy"][0][1], 4)
    assert raw["seconds"][0] == {"pretrain": 41.24, "evaluate": 1.5}
    assert raw["peak_memory_mb"][0] == 812.3
    assert raw["settings"] == {"pretrain.lr": 0.00012345}
    assert len(raw["extra"]["cosine_after_pil"]) == 6


def test_one_run_is_one_line(result):
    text = to_json(result)
    assert text.endswith("}\n")
    assert sum(line.startswith("  [") for line in text.splitlines()) == 5 * result.runs


def test_reading_gives_back_what_was_written(tmp_path, result):
    path = tmp_path / "new" / "result.json"
    write(path, result)
    again = read(path)
    assert to_json(again) == to_json(result)
    assert read(path.parent) == again  # a run folder
    write(path, again)
    assert read(path) == again
    for field in ("accuracy", "base", "forgetting"):
        np.testing.assert_allclose(getattr(again, field), getattr(result, field), atol=5.1e-5)
    assert again.sessions == result.sessions


def test_a_run_from_python_has_no_command(result):
    assert from_json(to_json(replace(result, command=""))).command == ""


def test_an_older_result_without_threads_and_version_loads(result):
    older = replace(result, machine={"device": "CPU", "cores": 2})
    assert from_json(to_json(older)).machine == older.machine


def test_a_result_of_the_first_schema_has_no_list_of_all_settings(raw, result):
    first = {key: value for key, value in raw.items() if key != "all_settings"}
    again = from_json(json.dumps({**first, "schema": 1}))
    assert to_json(again) == to_json(replace(result, all_settings={}))


def test_a_base_session_alone_is_a_result(make_result):
    alone = make_result(sessions=1)
    again = from_json(to_json(alone))
    assert again.forgetting == ((),)
    assert again.gacc == (None,)
    assert again.novel == ((None,),)


def test_no_minus_zero_and_no_nan_is_written(result):
    text = to_json(replace(result, forgetting=tuple((-0.00001,) * 8 for _ in range(6))))
    assert "-0.0" not in text
    with pytest.raises(ValueError, match="JSON"):
        to_json(replace(result, gacc=(float("nan"),) * 6))


def test_a_failed_write_leaves_the_old_file(tmp_path, result, monkeypatch):
    path = tmp_path / "result.json"
    write(path, result)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(path, replace(result, method="other"))
    assert path.read_bytes() == before


def test_files_are_called_after_what_they_hold(make_result):
    assert results.file_name(make_result()) == "cifar100-cec"
    assert (
        results.file_name(make_result(recipe="quick", settings={"pretrain.epochs": 5}))
        == "cifar100-cec-quick-epochs-5"
    )
    assert (
        results.file_name(make_result(settings={"pseudo.angles": "10,-10"}))
        == "cifar100-cec-angles-10_-10"
    )
    odd = make_result("folder:/my birds/$HOME", "mine.py:Mine", settings={"x.y": "[1, 2] & 'ü'"})
    assert results.file_name(odd) == "folder--my-birds--HOME-mine-y--1_2-----ü-"


def test_a_recorded_result_replaces_none_of_another_file_or_split(tmp_path, make_result):
    def of(file: str, **changes: object) -> RunResult:
        result = make_result(method="mine", **changes)
        return replace(
            result, machine={**result.machine, "method_source": {"file": file, "sha256": "0"}}
        )

    mine, theirs = of("/a/mine.py"), of("/b/mine.py")
    paths = [results.record(tmp_path, row) for row in (mine, theirs, mine, theirs)]
    assert [path.name for path in paths] == ["cifar100-mine.json", "cifar100-mine-2.json"] * 2
    assert [read(path).machine for path in paths[:2]] == [mine.machine, theirs.machine]
    other = replace(mine, split="draw 1: 60 base, 5-way 1-shot")
    assert results.record(tmp_path, other).name == "cifar100-mine-3.json"
    rates = [make_result(settings={f"{stage}.lr": 0.1}) for stage in ("pretrain", "pseudo")]
    of_rates = [results.record(tmp_path, row) for row in (*rates, *rates)]
    assert [path.name for path in of_rates] == [
        "cifar100-cec-lr-0.1.json",
        "cifar100-cec-lr-0.1-2.json",
    ] * 2
    paths[0].write_text("damaged")
    assert results.record(tmp_path, mine) == paths[0]
    assert read(paths[0]).machine == mine.machine


def test_a_recorded_result_replaces_none_of_other_seeds(tmp_path, make_result):
    for seeds, name in (
        ((0,), "cifar100-cec.json"),
        ((0, 1), "cifar100-cec.json"),
        ((2,), "cifar100-cec-2.json"),
        ((0,), "cifar100-cec-3.json"),
        ((0, 1, 2), "cifar100-cec.json"),
    ):
        assert results.record(tmp_path, make_result(seeds=seeds)).name == name, seeds


def test_a_recorded_result_replaces_none_of_a_later_version(tmp_path, make_result):
    path = results.record(tmp_path, make_result())
    later = path.read_text().replace('"schema": 2', '"schema": 3')
    path.write_text(later)
    assert results.record(tmp_path, make_result()).name == "cifar100-cec-2.json"
    assert path.read_text() == later
    for damaged in ("[]", '{"schema": null}', '{"schema": 1}'):
        path.write_text(damaged)
        assert results.record(tmp_path, make_result()) == path
        assert read(path).seeds == (0,)


def test_runs_without_test_images_of_the_base_are_refused(make_result):
    with pytest.raises(DataError, match="at least one run"):
        make_result(seeds=())


# Damage


@pytest.mark.parametrize("key", KEYS[1:])
def test_each_missing_key_is_named(raw, key):
    with pytest.raises(DataError, match=rf"here\.json .*lacks {key};"):
        from_json(json.dumps({k: v for k, v in raw.items() if k != key}), "here.json")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("benchmark", 3, "benchmark must be a text, not 3"),
        ("method", "", 'method must be a text, not ""'),
        ("recipe", ["a"], 'recipe must be a text or null, not ["a"]'),
        ("machine", [], "machine must be an object, not []"),
        ("seeds", [], "seeds is empty"),
        ("seeds", [0, 1, 2, 3, 4, True], "seeds must be whole numbers, not true"),
        ("seeds", [0], "accuracy has 6 items for 1 runs"),
        ("draws", [0, 1, 2, 0, 1, 0.5], "draws must be whole numbers or null, not 0.5"),
        ("sessions", [], "sessions is empty"),
        (
            "sessions",
            [{"classes": 60}],
            'sessions must be objects like {"classes": 60, "test": 6000}, not {"classes": 60}',
        ),
        ("sessions", [{"classes": 60, "test": 9}, {"classes": 5, "test": 9}], "sessions must grow"),
        ("accuracy", "high", 'accuracy must be a list, not "high"'),
        ("accuracy", [1] * 6, "accuracy must be a list of lists, not 1"),
        ("accuracy", [[50] * 8] * 6, "accuracy of run 0 has 8 values and needs 9"),
        (
            "accuracy",
            [[50] * 8 + [101]] * 6,
            "accuracy of run 5 in session 8 must be a number from 0 to 100, not 101",
        ),
        (
            "accuracy",
            [[None] + [50] * 8] * 6,
            "accuracy of run 0 in session 0 must be a number from 0 to 100, not null",
        ),
        ("novel", [[50] * 9] * 6, "novel of run 0 in session 0 must be null, not 50"),
        ("forgetting", [[-101] * 8] * 6, "must be a number from -100 to 100, or null, not -101"),
        ("gacc", [50] * 5, "gacc has 5 items for 6 runs"),
        (
            "seconds",
            [{"pretrain": -1}] * 6,
            'seconds must be an object of seconds by stage, not {"pretrain": -1}',
        ),
        ("peak_memory_mb", [10**400] * 6, "peak_memory_mb must be numbers from 0, not 1000"),
        ("peak_memory_mb", ["much"] * 6, 'peak_memory_mb must be numbers from 0, not "much"'),
        (
            "extra",
            {"a": [["x"] * 9] * 6},
            'extra.a of run 0 in session 0 must be a number or null, not "x"',
        ),
        ("all_settings", {"a": 1}, "all_settings must be an object of texts, not 1"),
        ("colour", "red", 'it has unknown keys "colour"'),
    ],
)
def test_each_wrong_value_is_named(raw, key, value, says):
    with pytest.raises(DataError) as error:
        from_json(changed(raw, **{key: value}), "here.json")
    assert says in str(error.value)
    assert str(error.value).startswith("here.json is not a sound result: ")


def test_all_problems_are_reported_at_once(raw):
    with pytest.raises(DataError) as error:
        from_json(changed(raw, method=1, gacc=2, keeps=3))
    assert all(f"{key} must be" in str(error.value) for key in ("method", "gacc", "keeps"))


def test_an_unknown_shape_is_one_complaint_not_fifty(raw):
    with pytest.raises(DataError) as error:
        from_json(changed(raw, sessions="none"))
    assert str(error.value).count(";") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ('{"schema": 1, "benchm', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"schema": 1, "gacc": [NaN]}', "NaN is not a number"),
        ('{"schema": 1, "settings": {"lr": 1e999}}', "1e999 is not a number"),
        ("[1, 2]", "is not a result of fewmore"),
        ('{"loss": 0.1}', "has no schema number"),
        ('{"schema": "1"}', "must be a whole number"),
        (
            '{"schema": 3}',
            "has schema 3, and this version of fewmore knows schemas up to 2: upgrade",
        ),
    ],
)
def test_foreign_files_are_refused(tmp_path, text, says):
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read(path)
    assert says in str(error.value)
    assert str(error.value).startswith(str(path))


def test_missing_and_binary_files_are_distinguished(tmp_path):
    with pytest.raises(MissingData, match="is not there: give a run folder"):
        read(tmp_path / "none.json")
    with pytest.raises(MissingData, match=r"has no result\.json"):
        read(tmp_path)
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as text"):
        read(tmp_path / "x.json")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-200, 200) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_is_either_harmless_or_reported(raw, data):
    damaged = dict(raw)
    for key in data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)):
        damaged[key] = data.draw(JSON_VALUES)
    try:
        sound = from_json(json.dumps(damaged))
    except FewmoreError:
        return
    assert from_json(to_json(sound)) is not None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_a_cut_file_is_refused(result, where):
    text = to_json(result)
    with pytest.raises(DataError, match="is not JSON"):
        from_json(text[: where % (len(text) - 2)])


# Names


def test_names_tell_results_apart(make_result):
    def named(*about):
        return names([make_result(sessions=2, **kw) for kw in about])

    assert named({"method": "cec"}, {"method": "topic"}) == ["cec", "topic"]
    assert named({"recipe": "paper"}, {"recipe": None}, {"method": "topic"}) == [
        "cec, paper",
        "cec, no recipe",
        "topic",
    ]
    assert named({"split": "official"}, {"split": "draw"}) == ["cec, official", "cec, draw"]
    assert named({"settings": {"a.b": 1, "c": True}}, {"settings": {"a.b": 2, "c": True}}, {}) == [
        "cec, a.b=1, c=true",
        "cec, a.b=2, c=true",
        "cec",
    ]
    assert named({}, {}) == ["cec #1", "cec #2"]


def test_names_hide_no_setting_that_another_method_has_not(make_result):
    short = make_result(sessions=2, settings={"features": "closer", "epochs": 1})
    long = make_result(sessions=2, method="topic", settings={"features": "closer"})
    assert names([short, long]) == ["cec, epochs=1", "topic"]
    assert shared_settings([short, long]) == "features=closer"
    assert names([short]) == ["cec"], "what all rows share is said once"
    assert shared_settings([short]) == "features=closer, epochs=1"
    plain = make_result(sessions=2, method="topic")
    assert names([short, plain]) == ["cec, features=closer, epochs=1", "topic"]
    assert shared_settings([short, plain]) == ""


def test_a_recipe_is_named_where_it_is_not_the_default(make_result):
    quick = make_result(sessions=2, recipe="quick")
    official = make_result(sessions=2, method="topic")
    assert names([quick, official]) == ["cec, quick", "topic"]
    assert shared_settings([quick, quick]) == "recipe quick"
    assert shared_settings([official]) == ""
    glyphs = make_result("glyphs", sessions=2, recipe="quick")
    assert shared_settings([glyphs]) == ""


def test_users_methods_of_one_name_are_told_apart_by_their_files(make_result):
    def named(*sources):
        of = [
            make_result(
                sessions=2,
                method="mine",
                machine={"method_source": {"file": file, "sha256": digest * 64}},
            )
            for file, digest in sources
        ]
        return names([*of, make_result(sessions=2)])

    assert named(("/home/me/a.py", "1"), ("/home/me/b.py", "2")) == [
        "mine, a.py",
        "mine, b.py",
        "cec",
    ]
    assert named(("/home/a.py", "1"), ("/home/./a.py", "2"))[:2] == [
        "mine, a.py (sha256 11111111)",
        "mine, a.py (sha256 22222222)",
    ], "two ways to write one path"
    assert named(("/home/old/a.py", "1"), ("/home/new/a.py", "2"), ("/home/b.py", "3")) == [
        "mine, old/a.py",
        "mine, new/a.py",
        "mine, b.py",
        "cec",
    ]
    assert named(("/home/a.py", "1"), ("/home/a.py", "2")) == [
        "mine, a.py (sha256 11111111)",
        "mine, a.py (sha256 22222222)",
        "cec",
    ]
    assert named(("/home/a.py", "1")) == ["mine", "cec"]


def test_versions_of_features_and_benchmarks_are_told_apart(make_result):
    def of(key, file, digest, **about):
        return make_result(
            sessions=2, machine={key: {"file": file, "sha256": digest * 64}}, **about
        )

    closer = {"settings": {"features": "near.py:Near"}}
    features = [of("features_source", "/me/near.py", digest, **closer) for digest in "12"]
    assert names(features) == ["cec, near.py (sha256 11111111)", "cec, near.py (sha256 22222222)"]
    images = [of("benchmark_source", file, "12"["new" in file]) for file in ("/photos", "/new")]
    assert names([*images, make_result(sessions=2)]) == ["cec, photos", "cec, new", "cec"]
    same = [of("benchmark_source", file, "1", seeds=(seed,)) for seed, file in enumerate("ab")]
    assert names(same) == ["cec #1", "cec #2"], "a copy is the same benchmark"


def test_the_fields_are_the_keys():
    assert [field.name for field in fields(RunResult)] == KEYS[1:]
