"""Sessions to learn from."""

import pytest

from cecil.data.benchmarks import Task
from cecil.data.images import ImageSet


@pytest.fixture
def sessions(tiny_task: Task) -> list[ImageSet]:
    """Each session's pictures, alone."""
    return [session.of(tiny_task.train).alone() for session in tiny_task.split.sessions]
