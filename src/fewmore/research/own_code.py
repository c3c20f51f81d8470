"""Record which files of a user's own code an experiment runs, and find them again.

A file may be edited between a run and its resuming, or between a run and the loading of its model:
what is read then is what the run was made with, or nothing.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fewmore import methods, plugins
from fewmore.data import benchmarks
from fewmore.errors import FewmoreError, MissingData
from fewmore.research.experiment import Experiment

Sources = Mapping[str, Mapping[str, str]]  # file and sha256, by what they hold
# What of an experiment may be a user's own, as results name it, and where config.json has it.
METHOD, FEATURES, BENCHMARK = "method_source", "features_source", "benchmark_source"


def own_code(experiment: Experiment) -> Sources:
    """Return file and hash of what is a user's own: the method, the features, the benchmark."""
    found = {
        METHOD: methods.find(experiment.method).source,
        FEATURES: features_source(experiment),
    }
    with suppress(FewmoreError):  # of images that were given in Python, it is but a name
        found[BENCHMARK] = benchmarks.find(experiment.benchmark).source
    return {
        name: {**source, "file": str(Path(source["file"]).resolve())}
        for name, source in found.items()
        if source
    }


def features_source(experiment: Experiment) -> Mapping[str, str] | None:
    """Return file and hash of a user's own feature recipe, as the class that runs was loaded.

    The file may have been edited since.
    """
    loaded = plugins.loaded_source(type(experiment.recipe.pretrain))
    return loaded or methods.find_features(experiment.recipe.features).source


def same_code(one: Sources, other: Sources) -> bool:
    """Return whether two experiments run the same code, wherever its files lie."""
    return {name: source["sha256"] for name, source in one.items()} == {
        name: source["sha256"] for name, source in other.items()
    }


def with_recorded_files(config: str, recorded: Sources) -> str:
    """Return the text of a config.json in which user's files are named so that they are found.

    A file that lies elsewhere than seen from here is named by its whole path; one that is gone or
    has changed is an error.
    """
    try:
        raw = json.loads(config)
        raw["method"] = _find_file(str(raw["method"]), recorded.get(METHOD))
        recipe = raw["recipe"]
        if "features" in recipe:
            recipe["features"] = _find_file(str(recipe["features"]), recorded.get(FEATURES))
    except (ValueError, KeyError, TypeError):
        return config  # it is damaged, which reading it as an experiment reports
    return json.dumps(raw)


def _find_file(name: str, source: Mapping[str, str] | None) -> str:
    """Return path/to/file.py:Class with a path at which the recorded content is found."""
    where, colon, cls = name.rpartition(":")
    if source is None or not where.endswith(".py"):
        return name
    for path in (Path(where), Path(source["file"])):
        if path.is_file() and plugins.code_hash(path) == source["sha256"]:
            return name if path == Path(where) else f"{path}{colon}{cls}"
    state = "has changed since" if Path(source["file"]).is_file() else "is gone"
    raise MissingData(
        f"{source['file']} {state}, and this run was made with it: put back the version with the "
        f"sha256 {source['sha256'][:12]}…"
    )
