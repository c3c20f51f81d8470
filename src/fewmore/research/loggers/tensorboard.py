"""Write the rounds and sessions of a run for TensorBoard: `tensorboard --logdir runs`."""

from collections.abc import Mapping

from fewmore.research.loggers.base import SESSIONS, Logger, RunFacts


class TensorBoardLogger(Logger):
    """Write curves by stage, and the recipe as hyperparameters beside the last session."""

    def __init__(self, facts: RunFacts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.hyperparameters = facts.hyperparameters()
        self.last_session: dict[str, float] = {}
        self.writer = SummaryWriter(str(facts.folder / "tensorboard"))
        lines = [f"| {name} | {value} |" for name, value in self.hyperparameters.items()]
        self.writer.add_text("recipe", "\n".join(["| setting | value |", "| --- | --- |", *lines]))

    def log(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Add a point to the curves of a stage."""
        for name, value in values.items():
            self.writer.add_scalar(f"{group}/{name}", value, step)
        if group == SESSIONS:
            self.last_session = {f"last/{name}": value for name, value in values.items()}
        self.writer.flush()

    def close(self, failed: bool) -> None:
        """Write the hyperparameters with what the last session reached, and close the files."""
        if self.last_session:
            self.writer.add_hparams(self.hyperparameters, self.last_session, run_name=".")
        self.writer.close()
