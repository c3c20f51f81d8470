"""Send the rounds and sessions of a run to MLflow, at $MLFLOW_TRACKING_URI or its default place.

The MLflow experiment is `fewmore`, or $MLFLOW_EXPERIMENT_NAME.
"""

import os
import threading
from collections.abc import Mapping

from fewmore.io import write_bytes
from fewmore.research.loggers.base import Logger, RunFacts

_LOCK = threading.Lock()
LONGEST = 500  # characters of a parameter; older servers take no more


class MlflowLogger(Logger):
    """Make a run of MLflow for a run; its id is kept in the run's folder, for --resume."""

    def __init__(self, facts: RunFacts) -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient()
        known = facts.folder / "mlflow-run.txt"
        if known.exists():
            self.run_id = known.read_text().strip()
            self.client.update_run(self.run_id, status="RUNNING")
            return
        tags = {"run_folder": facts.group}
        run = self.client.create_run(self._experiment(), run_name=facts.name, tags=tags)
        self.run_id = run.info.run_id
        for name, value in facts.hyperparameters().items():
            self.client.log_param(self.run_id, name, str(value)[:LONGEST])
        write_bytes(known, self.run_id.encode())

    def _experiment(self) -> str:
        """Return the id of the MLflow experiment, which is made if it is new."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fewmore")
        with _LOCK:  # runs side by side would both make it
            found = self.client.get_experiment_by_name(name)
            return found.experiment_id if found else str(self.client.create_experiment(name))

    def log(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to the curves of a stage."""
        for name, value in values.items():
            self.client.log_metric(self.run_id, f"{group}/{name}", value, step=step)

    def close(self, failed: bool) -> None:
        """End the run, as failed or as finished."""
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")
