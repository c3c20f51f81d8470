"""Test the Open Inference Protocol with Triton's own client, and against its own description.

tests/service/data/open_inference_rest.yaml is that of github.com/kserve/open-inference-protocol,
commit d49cc23, unchanged; its license is Apache 2.0.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from PIL import Image
from pydantic import ValidationError
from schemathesis.checks import CHECKS

from fewmore import __version__
from fewmore.service import open_inference
from fewmore.service.guard import Access

tritonclient = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")

Inside = Callable[..., AbstractContextManager[Any]]
Serving = Callable[..., AbstractContextManager[Any]]
MakeImage = Callable[..., bytes]
DESCRIPTION = Path(__file__).parent / "data" / "open_inference_rest.yaml"
INFER = "/v2/models/birds/infer"


@pytest.fixture(scope="module")
def served(
    serving: Serving, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    model = tmp_path_factory.mktemp("inference") / "birds.fewmore"
    model.write_bytes(small_model.read_bytes())
    with serving(model, "--no-thumbnails") as process:
        yield process
        assert process.stop() == 0
        assert process.process.stderr.read() == ""


@pytest.fixture(scope="module")
def triton(served: Any) -> Iterator[Any]:
    with tritonclient.InferenceServerClient(served.url.removeprefix("http://")) as client:
        yield client


def pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as opened:
        return np.asarray(opened.convert("RGB"))


def tensor(values: np.ndarray, datatype: str, binary: bool = True) -> Any:
    wanted = tritonclient.InferInput("image", list(values.shape), datatype)
    return wanted.set_data_from_numpy(values, binary_data=binary)


def test_triton_reads_what_the_model_is(triton: Any):
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("birds")
    assert triton.is_model_ready("birds", "1")
    assert not triton.is_model_ready("ferns")
    assert not triton.is_model_ready("birds", "2")
    assert triton.get_server_metadata()["version"] == __version__
    metadata = triton.get_model_metadata("birds")
    assert metadata["versions"] == ["1"]
    assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    with pytest.raises(tritonclient.InferenceServerException, match="this service has 'birds'"):
        triton.get_model_metadata("ferns")


def test_triton_predicts_from_files_and_pixels(triton: Any, served: Any, image: MakeImage):
    files = [image("robin", 1), image("okapi", 2)]
    sent = [("images", ("a.png", data, "image/png")) for data in files]
    response = httpx2.post(f"{served.url}/api/predict?top=2", files=sent, timeout=30)
    expected = response.json()["predictions"]
    batch = np.stack([pixels(data) for data in files])
    parameters = {"top": 2}
    for name, values, datatype in (
        ("files", np.array(files, object), "BYTES"),
        ("channels last", batch, "UINT8"),
        ("channels first", np.ascontiguousarray(batch.transpose(0, 3, 1, 2)), "UINT8"),
    ):
        result = triton.infer("birds", [tensor(values, datatype)], parameters=parameters)
        assert result.as_numpy("name").shape == (2, 2)
        for row, one in enumerate(expected):
            names = [text.decode() for text in result.as_numpy("name")[row]]
            assert names == [found["name"] for found in one["classes"]], name
            confidences = [found["confidence"] for found in one["classes"]]
            assert result.as_numpy("confidence")[row] == pytest.approx(confidences, abs=1e-5)
            assert result.as_numpy("known")[row] == one["known"]
            familiarity = one["familiarity"]
            assert result.as_numpy("familiarity")[row] == pytest.approx(familiarity, abs=1e-5)
    alone = triton.infer("birds", [tensor(batch[0], "UINT8")], "1", request_id="42")
    assert alone.get_response()["id"] == "42"
    assert alone.get_response()["model_version"] == "1"
    as_json = triton.infer(
        "birds",
        [tensor(batch[:1], "UINT8", binary=False)],
        outputs=[tritonclient.InferRequestedOutput("name", binary_data=False)],
    )
    (output,) = as_json.get_response()["outputs"]
    assert output["data"][0] == expected[0]["classes"][0]["name"]


def test_a_token_is_needed_where_there_is_one(model: Path, serving: Serving):
    token = "a-token-of-some-length"
    with (
        serving(model, FEWMORE_TOKEN=token) as served,
        tritonclient.InferenceServerClient(served.url.removeprefix("http://")) as client,
    ):
        assert client.is_server_ready()
        with pytest.raises(tritonclient.InferenceServerException, match="token is missing"):
            client.get_model_metadata("birds")
        headers = {"Authorization": f"Bearer {token}"}
        assert client.get_model_metadata("birds", headers=headers)["name"] == "birds"


# What cannot be


def request(data: Any, shape: list[int], datatype: str = "BYTES", **more: Any) -> dict[str, Any]:
    one = {"name": "image", "shape": shape, "datatype": datatype, "data": data}
    return {"inputs": [one], **more}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (request([], [0]), "there are 0 images"),
        (request(["?"], [1]), "base64"),
        (request([1], [1]), "base64"),
        (request(["aGk="], [2]), r"the shape is \[2\]"),
        (request(["aGk="], [1]), "cannot be read as an image"),
        (request(["aGk="] * 65, [65]), "1 to 64"),
        (request([1], [1], "FP32"), "BYTES or UINT8"),
        (request([1, 2], [1, 1, 3], "UINT8"), "there are 2 numbers"),
        (request([1, 2, 300], [1, 1, 3], "UINT8"), "from 0 to 255"),
        (request([1.5, 2, 3], [1, 1, 3], "UINT8"), "from 0 to 255"),
        (request([1, 2, 3], [3], "UINT8"), "pixels have the shape"),
        (request(["aGk="], [1], outputs=[{"name": "logits"}]), "no output 'logits'"),
        (request(["aGk="], [1], outputs=[{"name": "x" * 999}]), f"'{'x' * 100}': there are"),
        (request(["aGk="], [1], parameters={"top": 0}), "from 1 to 100"),
        (request(None, [1]), "either data or"),
        (request(["aGk="], [-1]), "not as it should be"),
        (request(["aGk="], [1] * 9), "inputs.0.shape: List should have at most 8 items"),
        (request(["aGk="], [1], parameters={str(n): [] for n in range(101)}), "at most 100"),
        ({"inputs": []}, "one input"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": []}]}, "one input"),
        ({}, "inputs: Field required"),
        ([], "not as it should be"),
    ],
)
def test_other_requests_are_refused(client: Any, body: Any, why: str):
    response = client.http.post(INFER, json=body)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    assert why.replace("\\", "") in response.json()["error"]


@pytest.mark.parametrize(
    ("length", "body"),
    [
        ("x", b"{}"),
        ("3", b"{}"),
        ("-1", b"{}"),
        ("2", b"{}rest"),
        ("9" * 5000, b"{}"),
        (None, b""),
        (None, b"[" * 5000),
        (None, b"\xff"),
    ],
)
def test_broken_bodies_are_refused(client: Any, length: str | None, body: bytes):
    headers = {} if length is None else {"Inference-Header-Content-Length": length}
    response = client.http.post(INFER, content=body, headers=headers)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}


def test_the_check_of_a_request_stops_at_the_first_wrong_element():
    for wrong in ('{"inputs": [%s]}', '{"inputs": [], "outputs": [%s]}'):
        with pytest.raises(ValidationError) as caught:
            open_inference.InferRequest.model_validate_json(wrong % ",".join("1" * 50))
        assert caught.value.error_count() == 1


def test_binary_data_is_checked(client: Any, image: MakeImage):
    def send(binary: bytes, size: int) -> Any:
        one = request(None, [1])
        del one["inputs"][0]["data"]
        one["inputs"][0]["parameters"] = {"binary_data_size": size}
        head = json.dumps(one).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return client.http.post(INFER, content=head + binary, headers=headers)

    data = image("robin")
    whole = len(data).to_bytes(4, "little") + data
    assert send(whole, len(whole)).status_code == 200
    many = bytes(4) * 65  # lengths of 0
    for binary, size in (
        *((whole, 5), (whole[:-1], len(whole) - 1), (b"\0", 1), (b"", 0)),
        (many, len(many)),
    ):
        assert send(binary, size).status_code == 400


def test_errors_of_the_guard_look_as_the_protocol_says(model: Path, inside: Inside):
    with inside(model, access=Access("a-token-of-some-length")) as client:
        response = client.http.get("/v2/models/birds")
        assert response.status_code == 401
        assert response.headers["content-type"] == "application/json"
        assert response.headers["www-authenticate"] == "Bearer"
        assert "token" in response.json()["error"]
        assert client.http.get("/v2/health/live").json() == {"live": True}


def test_metadata_is_at_both_addresses(client: Any, image: MakeImage):
    assert client.http.get("/v2").json() == client.http.get("/v2/").json()
    client.teach("okapi")
    assert client.http.get("/v2/models/birds").json()["versions"] == ["2"]
    assert client.http.get("/v2/models/birds/versions/1").status_code == 404
    encoded = base64.b64encode(image("okapi", 7)).decode()
    body = request([encoded], [1], id="a", parameters={"top": 1})
    found = client.http.post("/v2/models/birds/versions/2/infer", json=body).json()
    assert found["id"] == "a"
    assert {output["name"]: output["data"] for output in found["outputs"]}["name"] == ["okapi"]


# The protocol's own description


def fuzz(url: str, data: bytes, cases: int, number: int) -> "Counter[tuple[str, int]]":
    """Send requests that the description allows, and check that responses are as it says.

    Every third request to infer has an image for our model in it.
    """
    ours = request([base64.b64encode(data).decode()], [1])["inputs"]
    text = DESCRIPTION.read_text().replace("${", "{")  # OpenAPI writes parameters without $
    schema = schemathesis.openapi.from_dict(yaml.safe_load(text))
    schema.config.update(base_url=url)
    # A model has inputs of its own, which the description of all models cannot know.
    excluded = CHECKS.get_by_names(["positive_data_acceptance"])
    done: Counter[tuple[str, int]] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()

        @seed(number)
        @settings(
            max_examples=cases,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def send(case: Any) -> None:
            if case.path_parameters:
                case.path_parameters = {"MODEL_NAME": "birds", "MODEL_VERSION": "1"}
            if "infer" in operation.label and isinstance(case.body, dict) and done.total() % 3 == 0:  # noqa: B023
                case.body = {**case.body, "inputs": ours, "outputs": [], "parameters": {}}
            response = case.call_and_validate(excluded_checks=excluded)
            done[operation.label, response.status_code] += 1  # noqa: B023

        send()
    return done


def test_responses_are_as_the_protocol_says(served: Any, image: MakeImage):
    done = fuzz(served.url, image("robin"), 20, 0)
    assert {label for label, _ in done} >= {"GET /v2/health/live", "GET /v2/"}
    assert {status for label, status in done if "infer" in label} == {200, 400}


@pytest.mark.soak
def test_many_responses_are_as_the_protocol_says(served: Any, image: MakeImage):
    done = fuzz(served.url, image("robin"), 500, 1)
    print(f"{done.total()} cases of the protocol's description: {sorted(done.items())}")
    assert done.total() >= 500
