"""Load what a run has learnt."""

import re
from pathlib import Path

import torch

from fewmore.errors import CheckpointError
from fewmore.methods import find
from fewmore.methods.base import Method
from fewmore.research.run_folder import CONFIG, MODEL, read_experiment, session_folder
from fewmore.training.checkpoint import read_state
from fewmore.training.runtime import Runtime


def load_method(run: Path, session: int | None = None) -> Method:
    """Return the method of one finished run on the CPU: `run` is a folder such as runs/RUN/seed0.

    Its `scores` has a column for each class, in the order in which the classes came. With a
    `session`, the method is as it was after that session, if the run saved its sessions.
    """
    seed = re.match(r"seed(\d+)", run.name)
    config, model = run.parent / CONFIG, run / MODEL
    if seed is None or not config.exists() or not model.exists():
        raise CheckpointError(
            f"{run} is not the folder of a finished run: give one such as runs/RUN/seed0, "
            f"with model.safetensors in it and {CONFIG} beside it"
        )
    if session is not None:
        model = session_folder(run, session) / MODEL
        if not model.exists():
            raise CheckpointError(
                f"{run} has no model of session {session}: models are saved session by session "
                "by fewmore run --save-sessions, and the first session is 0"
            )
    experiment = read_experiment(config)
    runtime = Runtime(torch.device("cpu"))
    method = find(experiment.method).build(experiment.recipe, runtime, int(seed[1]))
    method.restore(read_state(model))
    return method
