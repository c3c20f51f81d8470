"""Make the runtime of training report its progress."""

import torch

from fewmore.classifier.embedding import Progress
from fewmore.training.runtime import Round, Runtime


def reporting_runtime(device: torch.device, progress: Progress) -> Runtime:
    """Return a runtime that reports each round of training."""

    def on_round(report: Round) -> None:
        progress(report.stage, report.round, report.rounds)

    return Runtime(device, on_round=on_round)
