"""Test `fewmore compare`."""

import csv
import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import typer
from matplotlib.figure import Figure
from typer.testing import CliRunner

from fewmore.cli.compare import compare
from fewmore.errors import ConfigError, DataError, FewmoreError
from fewmore.research.results import RunResult, SessionSize, read, write

ACCURACY = tuple(72.5 - 3 * i for i in range(9))
GAPS = (None, *[20.0] * 8)
RESULT = RunResult(
    benchmark="cifar100",
    method="cec",
    recipe="official",
    split="official",
    command="fewmore run cifar100",
    seeds=(0, 1),
    draws=(None, None),
    commit=None,
    date="2025-01-01T00:00:00+00:00",
    machine={},
    settings={},
    all_settings={},
    sessions=tuple(SessionSize(60 + 5 * i, 6000 + 500 * i) for i in range(9)),
    accuracy=(ACCURACY, tuple(a + 1 for a in ACCURACY)),
    base=((60.0,) * 9,) * 2,
    novel=(GAPS, GAPS),
    harmonic=(GAPS, GAPS),
    forgetting=((1.0,) * 8,) * 2,
    gacc=(40.0, 42.0),
    seconds=({}, {}),
    peak_memory_mb=(1.0, 1.0),
    extra={},
    keeps=None,
)

app = typer.Typer()
app.command()(compare)


@app.callback()
def several_commands() -> None:
    """Make `compare` one command of several, as in the real program."""


def run(*words):
    """Return what was printed, or raise the error."""
    done = CliRunner().invoke(app, ["compare", *map(str, words)], env={"COLUMNS": "120"})
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "cec" / "result.json", RESULT)
    write(tmp_path / "topic.json", replace(RESULT, method="topic"))
    write(tmp_path / "glyphs.json", replace(RESULT, benchmark="glyphs", recipe="quick"))
    write(
        tmp_path / "other.json",
        replace(RESULT, sessions=tuple(SessionSize(50 + 5 * i, 100 + i) for i in range(9))),
    )
    return tmp_path


def test_run_folders_and_result_files_stand_side_by_side(folder):
    lines = run(folder / "cec", folder / "topic.json").stdout.splitlines()
    assert lines[0] == "cifar100: 60 classes, then 8 sessions of 5; official split"
    order = [
        next(i for i, line in enumerate(lines) if line.startswith(name))
        for name in ("cec ", "CEC, pub", "topic ", "TOPIC, pub")
    ]
    assert order == sorted(order)
    row = next(line for line in lines if line.startswith("cec "))
    sessions = [f"{73 - 3 * i}.00" for i in range(9)]
    assert row.split() == ["cec", *sessions, "61.00", "24.00", "60.00", "20.00", "20.00", "41.00"]
    assert any(line.split()[:3] == ["2", "seeds", "±0.71"] for line in lines)
    assert any(line.startswith("published: CEC, CVPR 2021") for line in lines)


def test_benchmarks_and_session_shapes_have_tables_of_their_own(folder):
    text = run(folder / "cec", folder / "glyphs.json", folder / "other.json").stdout
    assert [line for line in text.splitlines() if "then 8 sessions" in line] == [
        "cifar100: 60 classes, then 8 sessions of 5; official split",
        "glyphs: 60 classes, then 8 sessions of 5; official split",
        "cifar100: 50 classes, then 8 sessions of 5; official split",
    ]
    assert text.count("CEC, published") == 1  # only where the protocol is the published one


def test_published_rows_can_be_left_out_or_be_all(folder):
    assert "published" not in run(folder / "cec", "--no-published").stdout
    every = run(folder / "cec", "--all-published").stdout
    assert all(
        name in every for name in ("Ft-CNN, published", "TOPIC, published", "BiDist, published")
    )


def test_a_path_given_twice_counts_once(folder):
    assert "#2" not in run(folder / "cec", folder / "cec").stdout


def test_csv_is_clean_for_a_pipe(folder, tmp_path):
    done = run(folder / "cec", folder / "glyphs.json", "--csv", "--plot", tmp_path / "c.svg")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["benchmark"], row["method"]) for row in rows] == [
        ("cifar100", "cec"),
        ("cifar100", "CEC"),
        ("glyphs", "cec"),
    ]
    assert rows[0]["average"] == "61.0"
    assert "plot:" in done.stderr


def test_markdown_and_latex(folder):
    markdown = run(folder / "cec", folder / "glyphs.json", "--markdown").stdout
    assert markdown.count("| method | 0 |") == 2
    assert "\n\n**glyphs" in markdown
    latex = run(folder / "cec", "--latex").stdout
    assert latex.count("\\begin{tabular}") == latex.count("\\end{tabular}") == 2


def test_the_plot_is_written_and_named(folder, tmp_path):
    target = tmp_path / "plots" / "compare.png"
    text = run(folder / "cec", "--plot", target).stdout
    assert f"plot: {target}" in text
    assert target.read_bytes().startswith(b"\x89PNG")


def test_a_file_of_the_users_is_not_drawn_over(folder, tmp_path):
    photo, own = tmp_path / "okapi.png", tmp_path / "own.png"
    photo.write_bytes(b"a photo")
    Figure().savefig(own)
    before = own.read_bytes()
    for file in (photo, own):
        with pytest.raises(ConfigError, match="is there already, and fewmore did not write it"):
            run(folder / "cec", "--plot", file)
    assert photo.read_bytes() == b"a photo"
    assert own.read_bytes() == before


def test_a_tilde_in_the_plots_path_is_the_home(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run(folder / "cec", "--plot=~/figures/curves.png")
    assert (tmp_path / "home" / "figures" / "curves.png").exists()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_an_earlier_plot_is_drawn_anew(folder, tmp_path, suffix):
    target = tmp_path / f"plot{suffix}"
    run(folder / "cec", "--plot", target)
    first = target.read_bytes()
    target.write_bytes(first + b"older")
    run(folder / "cec", "--plot", target)
    assert target.read_bytes() == first


def test_each_table_has_its_plot(folder, tmp_path):
    run(folder / "cec", folder / "glyphs.json", folder / "other.json", "--plot", tmp_path / "p.svg")
    assert sorted(path.name for path in tmp_path.glob("p*.svg")) == [
        "p-cifar100-2.svg",
        "p-cifar100.svg",
        "p-glyphs.svg",
    ]


def test_without_plot_no_file_is_written(folder):
    before = sorted(folder.rglob("*"))
    run(folder / "cec")
    assert sorted(folder.rglob("*")) == before


def test_all_broken_files_are_reported_at_once(folder):
    (folder / "broken.json").write_text("{")
    with pytest.raises(DataError) as error:
        run(folder / "cec", folder / "broken.json", folder / "none")
    first, second = str(error.value).splitlines()
    assert "broken.json is not JSON" in first
    assert "none is not there" in second


# Folders that are no finished runs


def test_unfinished_runs_are_named_and_other_folders_passed_over(folder):
    for name, file in (
        ("begun", "config.json"),
        ("lost", "seed0/metrics.jsonl"),
        ("stage1", "abc.safetensors"),
    ):
        path = folder / name / file
        path.parent.mkdir(parents=True)
        path.touch()
    done = run(folder / "cec", folder / "begun", folder / "lost", folder / "stage1")
    assert "CEC, published" in done.stdout
    first, second = done.stderr.splitlines()
    assert first.startswith(f"{folder / 'begun'} is not finished and left out")
    assert second.startswith(f"{folder / 'lost'} is not finished and left out")


def test_with_nothing_finished_there_is_a_sentence(folder, fewmore):
    (folder / "empty").mkdir()
    code, out, err = fewmore("compare", folder / "empty")
    assert (code, out) == (2, "")
    assert "there is no finished run to compare among" in err


# Jobs and pairs


@pytest.fixture
def jobs(tmp_path):
    """Write two methods as jobs of one seed each, and return their files."""
    files = []
    for method, gain in (("cec", 0.0), ("topic", -2.0)):
        for seed in range(3):
            accuracy = tuple(a + seed + gain + (0.5 if seed == 2 and gain else 0) for a in ACCURACY)
            one = {
                name: value[:1]
                for name, value in vars(RESULT).items()
                if isinstance(value, tuple) and name != "sessions"
            }
            one |= {"method": method, "seeds": (seed,), "accuracy": (accuracy,)}
            files.append(tmp_path / f"{method}-{seed}.json")
            write(files[-1], replace(RESULT, **one))
    return files


def test_changed_settings_are_seen_in_every_format(folder, tmp_path):
    """Those of all rows are in the title, those of one in its name; all are in a column of CSV."""
    short = {"pretrain.epochs": "1"}
    write(tmp_path / "cec" / "result.json", replace(RESULT, settings=short))
    both = (folder / "cec", folder / "topic.json")
    for words in ([], ["--markdown"], ["--latex"], ["--paired"]):
        printed = run(*both, *words).stdout.replace("\\_", "_")
        assert "cec, pretrain.epochs=1" in " ".join(printed.split()), words
        assert "measured with" not in printed
    closer = {"features": "closer", **short}
    for path, method in zip(both, ("cec", "topic"), strict=True):
        path = path / "result.json" if path.is_dir() else path
        write(path, replace(RESULT, method=method, settings=closer, recipe="mild"))
    for words in ([], ["--markdown"], ["--latex"], ["--paired"]):
        printed = run(*both, *words).stdout
        text = "official split; measured with recipe mild, features=closer, pretrain.epochs=1"
        assert text in " ".join(printed.split()), words
        assert "cec, " not in printed
    rows = list(csv.DictReader(io.StringIO(run(*both, "--csv", "--no-published").stdout)))
    assert [row["settings"] for row in rows] == ["features=closer; pretrain.epochs=1"] * 2
    run(*both, "--plot", tmp_path / "c.svg")
    assert "measured with recipe mild, features=closer" in (tmp_path / "c.svg").read_text()


def test_what_stage_1_alone_would_reach_comes_first(jobs):
    rows = list(csv.DictReader(io.StringIO(run(*jobs, "--csv").stdout)))
    assert (rows[0]["method"], rows[0]["source"]) == ("stage 1, nothing learnt", "computed")
    topic = next(row for row in rows if row["method"] == "topic")
    assert rows[0]["session_0"] == topic["session_0"]
    assert float(rows[0]["session_8"]) == pytest.approx(0.6 * float(topic["session_0"]), abs=1e-3)


def test_seeds_of_separate_jobs_are_one_row(jobs):
    rows = list(csv.DictReader(io.StringIO(run(*jobs, "--csv", "--no-published").stdout)))
    assert [(row["method"], row["runs"], row["detail"]) for row in rows] == [
        ("cec", "3", "3 seeds, pooled from 3 jobs"),
        ("topic", "3", "3 seeds, pooled from 3 jobs"),
    ]
    assert (rows[0]["session_0"], rows[0]["session_0_std"]) == ("73.5", "1.0")
    assert "pooled from 3 jobs" in run(*jobs).stdout


def test_pairs_have_a_difference_an_interval_and_a_p_value(jobs):
    text = run(*jobs, "--paired").stdout
    assert "accuracy after the last session, compared with cec" in text
    assert "average accuracy, compared with cec" in text
    assert ["topic", "-1.83", "-2.55", "-1.12", "0.0082", "3"] in map(str.split, text.splitlines())
    done = run(*jobs, "--paired", "--csv", "--reference", "topic")
    [last, average] = csv.DictReader(io.StringIO(done.stdout))
    assert (last["method"], last["difference"], last["pairs"]) == ("cec", "1.83333", "3")
    assert average["p"] == last["p"]
    assert "low, high: its 95 % confidence interval" in done.stderr
    assert "\\begin{tabular}" in run(*jobs, "--paired", "--latex").stdout
    assert "| topic | -1.83 |" in run(*jobs, "--paired", "--markdown").stdout


@pytest.mark.parametrize(
    ("chosen", "words", "key"),
    [
        (slice(0, 4), (), "topic and cec share 1 run, and a difference has an interval from 2 on"),
        (slice(0, 3), (), "cec is alone, and a difference needs two results"),
        (slice(0, 6), ("--reference", "topik"), "did you mean topic?"),
    ],
)
def test_too_few_pairs_are_a_sentence(jobs, chosen, words, key):
    with pytest.raises(ConfigError) as error:
        run(*jobs[chosen], "--paired", *words)
    assert key in str(error.value)


def test_a_benchmark_without_pairs_does_not_hide_the_others(jobs, folder):
    done = run(*jobs, folder / "glyphs.json", "--paired")
    assert "compared with cec" in done.stdout
    assert "glyphs: 60 classes, then 8 sessions of 5; official split: cec is alone" in done.stderr


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--csv", "--latex"], "--csv and --latex were given together"),
        (["--no-published", "--all-published"], "contradict each other"),
        (
            ["--plot", "figure.jpg"],
            "use --plot figure.png",
        ),
        (["--reference", "cec"], "--reference is of --paired"),
        (["--plot", "figure"], "use --plot figure.png"),
        (["--csv", "--markdown", "--plot", "x"], "keep one of them; --plot x"),
    ],
)
def test_wrong_options_are_refused(folder, words, key):
    with pytest.raises(ConfigError) as error:
        run(folder / "cec", *words)
    assert key in str(error.value)


def test_every_error_is_one_of_ours(folder):
    with pytest.raises(FewmoreError):
        run(folder / "nowhere")


def test_nothing_heavy_is_imported_before_the_command_runs():
    code = (
        "import sys, fewmore.cli.compare; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0


def test_jobs_are_recorded_as_one_result(folder):
    jobs = []
    for seed in (0, 1):
        job = replace(
            RESULT,
            command=f"fewmore run cifar100 --seed {seed}",
            seeds=(seed,),
            draws=(None,),
            machine={"device": "cpu", "beside other work": seed == 1},
            **{
                name: getattr(RESULT, name)[seed : seed + 1]
                for name in ("accuracy", "base", "novel", "harmonic", "forgetting", "gacc")
            },
            seconds=({},),
            peak_memory_mb=(1.0,),
        )
        jobs.append(folder / f"job{seed}.json")
        write(jobs[-1], job)
    done = run(*jobs, folder / "topic.json", "--record", folder / "results", "--csv")
    recorded = folder / "results" / "cifar100-cec.json"
    assert str(recorded) in done.stderr
    assert str(recorded) not in done.stdout
    result = read(recorded)
    assert (result.seeds, result.accuracy) == (RESULT.seeds, RESULT.accuracy)
    assert result.command == "fewmore run cifar100 --seed 0; fewmore run cifar100 --seed 1"
    assert result.machine["beside other work"] is True
    assert read(folder / "results" / "cifar100-topic.json").method == "topic"


def test_jobs_of_several_commits_are_not_recorded_as_one(folder):
    write(folder / "one.json", replace(RESULT, commit="0123456789ab"))
    write(folder / "other.json", replace(RESULT, commit="ba9876543210", seeds=(2, 3)))
    refusal = r"several versions of the code \(commit 0123456789ab, ba9876543210\)"
    with pytest.raises(ConfigError, match=refusal):
        run(folder / "one.json", folder / "other.json", "--record", folder / "results")
    assert not (folder / "results").exists()
