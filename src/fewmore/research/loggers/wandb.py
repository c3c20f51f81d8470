"""Send the rounds and sessions of a run to Weights & Biases.

The project is `fewmore`, or $WANDB_PROJECT; $WANDB_MODE=offline keeps everything on this machine.
"""

import os
from collections.abc import Mapping

from fewmore.research.loggers.base import Logger, RunFacts


class WandbLogger(Logger):
    """Make a run of W&B for a run; the seeds and draws of an experiment are one group."""

    def __init__(self, facts: RunFacts) -> None:
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fewmore"),
            group=facts.group,
            name=facts.name,
            id=facts.identity,
            resume="allow",
            config=facts.hyperparameters(),
            dir=facts.folder,
            reinit="create_new",  # several runs side by side in one process
        )
        self.groups: set[str] = set()

    def log(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to the curves of a stage, which have the stage's own steps."""
        if group not in self.groups:
            self.groups.add(group)
            self.run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        self.run.log(
            {f"{group}/step": step, **{f"{group}/{name}": v for name, v in values.items()}}
        )

    def close(self, failed: bool) -> None:
        """End the run, as failed or as finished."""
        self.run.finish(exit_code=int(failed))
