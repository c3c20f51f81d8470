"""Test with generated requests that responses are as the OpenAPI document says."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

OPERATIONS = 29  # of the API
PATIENCE = 120  # seconds: an export to ONNX takes some
ENDLESS = "/api/events"  # tested in test_events.py
# A schema cannot express everything that is refused: bytes that are not an image, names that are
# taken or contain control characters.
EXCLUDED = ("positive_data_acceptance",)


@pytest.fixture(scope="module")
def schema(
    serving: Callable[..., AbstractContextManager[Any]],
    small_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """Return the document of a real server process."""
    model = tmp_path_factory.mktemp("schema") / "birds.fewmore"
    model.write_bytes(small_model.read_bytes())
    with serving(model, "--no-thumbnails") as served:
        yield schemathesis.openapi.from_url(f"{served.url}/openapi.json")
        assert served.stop() == 0
        assert served.process.stderr.read() == ""


def fuzz(
    schema: Any, image: Callable[..., bytes], cases: int, number: int
) -> "Counter[tuple[str, int]]":
    """Send valid and invalid requests for every operation; count them by operation and status."""
    schemathesis.openapi.format(
        "binary", st.sampled_from([image("a", 1), image("b", 2), b"", b"no image", image("c")[:50]])
    )
    done: Counter[tuple[str, int]] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == ENDLESS:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and not (
                operation.body or list(operation.iter_parameters())
            ):
                continue  # nothing could be invalid

            @seed(number)
            @settings(
                max_examples=cases,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                # In a form every value is text, so a number or a list there is a valid name.
                body = case.body if isinstance(case.body, dict) else {}
                is_form = "form" in (case.media_type or "")
                assume(not (is_form and isinstance(body.get("name"), (int, float, list))))
                response = case.call_and_validate(
                    timeout=PATIENCE,
                    excluded_checks=[
                        check for name in EXCLUDED for check in CHECKS.get_by_names([name])
                    ],
                )
                done[operation.label, response.status_code] += 1  # noqa: B023

            send()
    return done


def test_some_cases_of_every_operation(schema: Any, image: Callable[..., bytes]):
    assert len(list(schema.get_all_operations())) == OPERATIONS
    assert fuzz(schema, image, 4, 0).total() > 2 * OPERATIONS


@pytest.mark.soak
def test_thousands_of_cases(schema: Any, image: Callable[..., bytes]):
    done = fuzz(schema, image, 160, int(os.environ.get("FEWMORE_SEED", "1")))
    print(f"{done.total()} cases, all as the document says: {sorted(done.items())}")
    assert done.total() >= 5000
    assert not any(status >= 500 for _, status in done)
    for operation in (
        "POST /api/predict",
        "POST /api/classes",
        "GET /api/map",
        "POST /api/sessions/undo",
    ):
        assert done[operation, 200] > 0, done
