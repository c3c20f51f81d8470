"""Define a study: the experiments behind a table or figure, and how it is drawn from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fewmore.data.benchmarks import Task
from fewmore.errors import ConfigError
from fewmore.io import write_bytes
from fewmore.research import recipes, results
from fewmore.research.experiment import Experiment
from fewmore.research.fitting import base_counts, fit_to_base
from fewmore.research.reporting import formats
from fewmore.research.reporting.tables import Grid, Table
from fewmore.research.results import RunResult
from fewmore.research.results.schema import default_recipe

SUBJECT = "cec"  # the method that the paper's studies are about


@dataclass(frozen=True)
class Setting:
    """Hold what a study is run with."""

    benchmark: str
    task: Task
    recipe: str | None = None  # None: the benchmark's own
    quick: bool = False
    seeds: tuple[int, ...] = (0,)
    settings: tuple[str, ...] = ()  # changes in all experiments that have them, as for --set

    @property
    def remark(self) -> str:
        """Say what all was measured with that is not the benchmark's default; empty if nothing."""
        unusual = self.recipe not in (None, default_recipe(self.benchmark))
        chosen = [f"recipe {self.recipe}"] if unusual else []
        parts = ", ".join([*chosen, *self.settings])
        return f"measured with {parts}" if parts else ""

    def experiment(self, method: str, *changes: str) -> Experiment:
        """Return a method's experiment under the recipe with changed settings.

        A setting of CEC, which the studies are about, is left out of a method that lacks it.
        Episodes that the base session is too small for are made to fit.
        """
        [(recipe, settings), _] = recipes.recipes_for(
            self.recipe, self.task.benchmark, [method, SUBJECT], (*self.settings, *changes)
        )
        experiment = Experiment(self.benchmark, method, recipe, settings, self.seeds)
        return fit_to_base(experiment, self.task)

    def fits(self, way: int, images: int, same_classes: bool = True) -> bool:
        """Return whether the base session has enough classes and images for an episode."""
        classes, smallest = self._base_size()
        return way * (1 if same_classes else 2) <= classes and images <= smallest

    def _base_size(self) -> tuple[int, int]:
        """Return the number of base classes, and the images of the smallest."""
        counts = base_counts(self.task)
        return len(counts), min(counts)


@dataclass(frozen=True)
class Finished:
    """Hold a finished experiment: its result, and the folder with its runs."""

    experiment: Experiment
    folder: Path
    result: RunResult


@dataclass(frozen=True)
class Study:
    """Describe one table or figure of the paper; each file of a study ends with its own."""

    name: str
    title: str
    paper: str  # where it is in the paper
    size: int  # experiments, where none is left out and the base session is large enough
    experiments: Callable[[Setting], dict[str, Experiment]]  # by label
    # Draws the figures into a folder and returns the table.
    draw: Callable[[Setting, Mapping[str, Finished], Path], Table | Grid]


def check_out(out: Path) -> None:
    """Refuse a folder for a study whose results/ holds what no study has written.

    A study replaces all that is in there.
    """
    if not (out / "table.md").exists() and any(out.glob("results/*.json")):
        raise ConfigError(
            f"{out / 'results'} holds results that are not of a study, and a study would replace "
            "them: give another folder with --out"
        )


def write(
    study: Study, setting: Setting, finished: Mapping[str, Finished], out: Path
) -> Table | Grid:
    """Write a study's figures, its table in three formats and the results behind it.

    Returns the table.
    """
    check_out(out)
    out.mkdir(parents=True, exist_ok=True)
    table = study.draw(setting, finished, out)
    if isinstance(table, Table):
        texts = {
            "md": formats.to_markdown(table),
            "csv": formats.to_csv([table]),
            "tex": formats.to_latex(table),
        }
    else:
        table = replace(table, notes=(*table.notes, *filter(None, [setting.remark])))
        texts = {
            "md": formats.grid_to_markdown(table),
            "csv": formats.grid_to_csv(table),
            "tex": formats.grid_to_latex(table),
        }
    for suffix, text in texts.items():
        write_bytes(out / f"table.{suffix}", text.encode())
    for old in out.glob("results/*.json"):  # of rows that are no longer in the table
        old.unlink()
    for each in finished.values():
        results.write(out / "results" / f"{results.file_name(each.result)}.json", each.result)
    return table
