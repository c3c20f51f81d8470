"""Whatever fits the OpenAPI document, or just does not, is answered as the document says."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

OPERATIONS = 15  # of the API
# Not everything that a schema allows can be: bytes that are no image, names that are taken or hold control characters.
LEFT_OUT = ("positive_data_acceptance",)


@pytest.fixture(scope="module")
def schema(
    serving: Callable[..., AbstractContextManager[Any]],
    small_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """The document of a real server process."""
    model = tmp_path_factory.mktemp("schema") / "birds.fewmore"
    model.write_bytes(small_model.read_bytes())
    with serving(model, "--no-thumbnails") as one:
        yield schemathesis.openapi.from_url(f"{one.url}/openapi.json")
        assert one.stop() == 0
        assert one.process.stderr.read() == ""


def fuzz(
    schema: Any, image: Callable[..., bytes], cases: int, number: int
) -> "Counter[tuple[str, int]]":
    """So many cases of every operation, half of them such as the document forbids; how many there were, by operation and answer."""
    schemathesis.openapi.format(
        "binary", st.sampled_from([image("a", 1), image("b", 2), b"", b"no image", image("c")[:50]])
    )
    done: Counter[tuple[str, int]] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and not (
                operation.body or list(operation.iter_parameters())
            ):
                continue  # nothing could be wrong about it

            @seed(number)
            @settings(
                max_examples=cases,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                answer = case.call_and_validate(
                    excluded_checks=[
                        check for name in LEFT_OUT for check in CHECKS.get_by_names([name])
                    ]
                )
                done[operation.label, answer.status_code] += 1  # noqa: B023

            ask()
    return done


def test_some_cases_of_every_operation(schema: Any, image: Callable[..., bytes]):
    assert len(list(schema.get_all_operations())) == OPERATIONS
    assert fuzz(schema, image, 4, 0).total() > 2 * OPERATIONS


@pytest.mark.soak
def test_thousands_of_cases(schema: Any, image: Callable[..., bytes]):
    done = fuzz(schema, image, 130, int(os.environ.get("FEWMORE_SEED", "1")))
    print(f"{done.total()} cases, all answered as the document says: {sorted(done.items())}")
    assert done.total() >= 2000
    for operation in (
        "POST /api/predict",
        "POST /api/classes",
        "GET /api/map",
        "POST /api/sessions/undo",
    ):
        assert done[operation, 200] > 0, done
