"""Provide sessions to learn from."""

import pytest

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet


@pytest.fixture
def sessions(tiny_task: Task) -> list[ImageSet]:
    """Return the images of each session."""
    return [session.select_from(tiny_task.train).compact() for session in tiny_task.split.sessions]
