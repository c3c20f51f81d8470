"""Search for settings: run every trial on the validation split, and record what came of it."""

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from fewmore.data import benchmarks
from fewmore.data.benchmarks import Benchmark, Task
from fewmore.data.loading import reshape, stored_size
from fewmore.errors import CheckpointError, ConfigError, FewmoreError, UnknownName, describe
from fewmore.methods import find, find_features
from fewmore.methods.base import Recipe
from fewmore.research import recipes, results, run_folder, runner
from fewmore.research.experiment import Experiment
from fewmore.research.fitting import fit_to_base
from fewmore.research.machine import commit, machine_facts
from fewmore.research.own_code import METHOD, own_code
from fewmore.research.results.schema import FEATURES_SETTING
from fewmore.research.runner import Plan, RunOptions, Watcher
from fewmore.research.tuning.record import FILE, MEASURES, Record, Trial, read
from fewmore.research.tuning.space import Range, Space, Values, all_trials, random_trials
from fewmore.research.validation import validation_task


@dataclass(frozen=True)
class Search:
    """Hold what is tried: a method's settings on the validation split of a benchmark.

    Attributes:
        benchmark: its name, as in `fewmore run`.
        method: its name, as in `fewmore run`.
        space: by setting, a list of values or a Range.
        recipe: its name; None for the benchmark's own.
        settings: changes that all trials share, such as "pretrain.epochs=50".
        random: how many trials are drawn at random; None for all combinations.
        search_seed: decides the random trials.
        seeds: each trial is run with each of them.
        draws: each trial is run with each of these draws of the shots.
        split: changes to the benchmark's sessions: base, way, shot, class_order.
    """

    benchmark: str
    method: str
    space: Mapping[str, Values | Range | Sequence[Any]]
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    random: int | None = None
    search_seed: int = 0
    seeds: tuple[int, ...] = (0,)
    draws: tuple[int, ...] = (0,)
    split: Mapping[str, int | None] = field(default_factory=dict)

    def texts(self) -> Space:
        """Return the space with all values as texts."""
        if not self.space:
            raise ConfigError(
                "there is nothing to try: name a setting and its values, "
                "such as --grid pretrain.lr=0.01,0.03,0.1"
            )
        return {
            name: each if isinstance(each, (Values, Range)) else Values.of(each)
            for name, each in self.space.items()
        }

    def plain_recipe(self) -> Recipe:
        """Return the recipe that the trials change."""
        return recipes.recipe(self.recipe, self._reshaped, self.method, self.settings)

    @cached_property
    def _reshaped(self) -> Benchmark:
        """Return the benchmark with the sessions of this search, as recipes may depend on them."""
        return reshape(benchmarks.find(self.benchmark), **self.split)

    def trials(self) -> list[dict[str, str]]:
        """Return the settings of each trial."""
        space = self.texts()
        if self.random is None:
            return all_trials(space)
        return random_trials(space, self.random, self.search_seed, self.plain_recipe())

    def experiment(self, settings: Mapping[str, str]) -> Experiment:
        """Return the experiment of a trial; ConfigError where its settings cannot be."""
        changes = [*self.settings, *(f"{name}={text}" for name, text in settings.items())]
        [(recipe, texts)] = recipes.recipes_for(self.recipe, self._reshaped, [self.method], changes)
        return Experiment(
            self.benchmark,
            self.method,
            recipe,
            texts,
            self.seeds,
            self.draws,
            **self.split,
            validation=True,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all that decides the trials, as JSON holds it."""
        return {
            "benchmark": self.benchmark,
            "method": self.method,
            "recipe": self.recipe,
            "settings": list(self.settings),
            "space": {name: str(values) for name, values in self.texts().items()},
            "random": self.random,
            "search_seed": self.search_seed,
            "seeds": list(self.seeds),
            "draws": list(self.draws),
            "split": {name: value for name, value in self.split.items() if value is not None},
            "recipe_values": _as_json(dataclasses.asdict(self.plain_recipe())),
            "method_source": dict(find(self.method).source or {}),
            **self._other_code(),
        }

    def _other_code(self) -> dict[str, Any]:
        """Return file and hash of features and of a benchmark that are a user's own."""
        experiment = Experiment(self.benchmark, self.method, self.plain_recipe())
        sources = {name: dict(source) for name, source in own_code(experiment).items()}
        sources.pop(METHOD, None)
        tried = self.texts().get(FEATURES_SETTING)
        names = tried.texts if isinstance(tried, Values) else ()
        of_tried = [dict(source) for name in names if (source := find_features(name).source)]
        return {**sources, **({"tried_features": of_tried} if of_tried else {})}


def _as_json(value: Any) -> Any:
    """Return a value as it is after it was written to JSON and read again."""
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def tune(
    search: Search,
    out: Path = Path("tune"),
    by: str = "last",
    options: RunOptions | None = None,
    resume: bool = False,
    data_root: Path | None = None,
    on_load: Callable[[int, int], None] | None = None,
    watcher_of: Callable[[Trial], Watcher] = lambda trial: Watcher(),
    on_begin: Callable[[Path, Record], None] = lambda folder, record: None,
) -> Record:
    """Run all trials of a search on the validation split; return the record of them.

    The record is written into a folder of its own in `out` after every trial, whose run folders lie
    beside it. A trial that fails is recorded with its sentence, and the search goes on. With
    `resume` the newest search of the same trials goes on: finished trials are kept, failed ones are
    tried again. ConfigError is raised if all trials have failed.

    Args:
        search: what is tried.
        out: where the folder of the search goes.
        by: the measure that chooses, one of MEASURES.
        options: where and how the runs are computed; on a GPU several side by side.
        resume: whether to go on with an earlier search, if there is one.
        data_root: where data sets lie; None for the usual place.
        on_load: is called with the number of images loaded and in total.
        watcher_of: returns the watcher of a trial's runs.
        on_begin: is called with the folder and the record before the first run.
    """
    if by not in MEASURES:
        raise UnknownName("measure", by, MEASURES)
    options = options or RunOptions()
    planned = _Planned(search)
    folder = _find(out, search.to_dict()) if resume else None
    known = None if folder is None else read(folder)
    if folder is not None and known is not None and len(known.ranked) == len(known.trials):
        record = dataclasses.replace(known, by=by)
        on_begin(folder, record)
        record.write(folder)
        return record
    transforms = [experiment.recipe.transform for experiment in planned.experiments.values()]
    if options.launcher is not None and len({stored_size([each]) for each in transforms}) > 1:
        raise ConfigError(
            "these trials share images as large as the largest transform needs, and a worker of a "
            "cluster has those of one trial: tune this setting with --launcher local"
        )
    task = runner.load_task(
        search.benchmark, options, data_root, on_load, None, transforms, **search.split
    )
    validation = validation_task(task, search.draws[0])
    planned.fit(validation)
    record = Record(
        search.to_dict(),
        by,
        _split_name(search, validation),
        options.command,
        commit(),
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        {**machine_facts(options.device), "side_by_side": options.workers(planned.runs)},
        tuple(planned.trials),
    )
    folder = folder or _create(out, search)
    return _Runner(folder, record, options, on_begin).run(planned, validation, watcher_of)


class _Planned:
    """Hold the trials of a search, and the experiments of those that can be run."""

    def __init__(self, search: Search) -> None:
        self.trials = [Trial(i + 1, texts, {}) for i, texts in enumerate(search.trials())]
        self.experiments: dict[int, Experiment] = {}
        errors: dict[int, FewmoreError] = {}
        for trial in self.trials:
            try:
                self.experiments[trial.number] = search.experiment(trial.settings)
            except UnknownName:
                raise  # a mistyped name
            except FewmoreError as error:
                errors[trial.number] = error
                self._fail(trial.number, str(error))
        self._refuse_useless_values(search.texts(), errors)

    def _refuse_useless_values(self, space: Space, errors: Mapping[int, FewmoreError]) -> None:
        """Raise the error of a value that no trial can be run with: it was mistyped."""
        for name, values in space.items():
            for text in values.texts if isinstance(values, Values) else ():
                with_it = [t.number for t in self.trials if t.settings[name] == text]
                if with_it and all(number in errors for number in with_it):
                    raise errors[with_it[0]]
        if len(errors) == len(self.trials):
            raise errors[1]

    @property
    def runs(self) -> int:
        """Return how many runs there are in all."""
        return sum(len(experiment.runs()) for experiment in self.experiments.values())

    def fit(self, task: Task) -> None:
        """Fit the settings of all experiments to the base session of the validation split."""
        errors = []
        for number, experiment in list(self.experiments.items()):
            try:
                self.experiments[number] = fit_to_base(experiment, task)
            except FewmoreError as error:
                errors.append(error)
                del self.experiments[number]
                self._fail(number, str(error))
        if not self.experiments:
            raise errors[0]

    def _fail(self, number: int, sentence: str) -> None:
        trial = self.trials[number - 1]
        self.trials[number - 1] = dataclasses.replace(trial, error=sentence)


class _Runner:
    """Run the trials of a search, and keep its record up to date."""

    def __init__(
        self,
        folder: Path,
        record: Record,
        options: RunOptions,
        on_begin: Callable[[Path, Record], None],
    ) -> None:
        self.folder = folder
        self.record = record
        self.options = options
        self.on_begin = on_begin

    def run(self, planned: _Planned, task: Task, watcher_of: Callable[[Trial], Watcher]) -> Record:
        """Run the experiments that are not finished; return the record of all."""
        self.numbers = {self._place(number): number for number in planned.experiments}
        for place, number in self.numbers.items():
            if run_folder.is_finished(place):
                trial = self._trial(number).finished(results.read(place))
                self.record = self.record.replaced(trial)
        self.record.write(self.folder)
        self.on_begin(self.folder, self.record)
        plans = []
        for place, number in self.numbers.items():
            if not self._trial(number).measures:
                place.mkdir(exist_ok=True)
                run_folder.write_config(place, planned.experiments[number])
                watcher = watcher_of(self._trial(number))
                plans.append(Plan(planned.experiments[number], place, watcher))
        if plans:
            runner.run_plans(plans, task, self.options, self._on_result, self._on_failure)
        failed = self.record.failed
        if len(failed) == len(self.record.trials):
            raise ConfigError(f"all {len(failed)} trials failed; the first: {failed[0].error}")
        return self.record

    def _place(self, number: int) -> Path:
        return self.folder / self._trial(number).folder

    def _trial(self, number: int) -> Trial:
        return self.record.trials[number - 1]

    def _on_result(self, plan: Plan, result: results.RunResult) -> None:
        self._keep(self._trial(self.numbers[plan.folder]).finished(result))

    def _on_failure(self, plan: Plan, error: Exception) -> None:
        sentence = str(error) if isinstance(error, FewmoreError) else describe(error)
        trial = self._trial(self.numbers[plan.folder])
        self._keep(dataclasses.replace(trial, error=sentence))

    def _keep(self, trial: Trial) -> None:
        self.record = self.record.replaced(trial)
        self.record.write(self.folder)


def _split_name(search: Search, task: Task) -> str:
    if len(search.draws) == 1:
        return task.split.name
    return task.split.name.replace(f"draw {search.draws[0]}", f"{len(search.draws)} draws", 1)


def _find(out: Path, definition: dict[str, Any]) -> Path | None:
    """Return the newest search of the same trials, or None."""
    files = sorted(out.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for file in files:
        try:
            if read(file).search == definition:
                return file.parent
        except FewmoreError:
            continue  # not a record of this version
    return None


def _create(out: Path, search: Search) -> Path:
    """Create the folder of a search."""
    benchmark = re.sub(r"[:/\\]", "-", search.benchmark)
    stem = f"{benchmark}-{find(search.method).name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, count = out / stem, 1
    while folder.exists():
        count += 1
        folder = out / f"{stem}-{count}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be made ({error.strerror}): "
            "give another place for searches with --out"
        ) from error
    return folder
