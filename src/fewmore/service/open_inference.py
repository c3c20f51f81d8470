"""Read requests and write responses of the Open Inference Protocol, version 2.

https://github.com/kserve/open-inference-protocol, with the extension for binary data that the
clients of Triton use: behind the JSON come the tensors' bytes, in the order of the tensors.

    in    image         BYTES (n)                 encoded files; in JSON, as base64
                        UINT8 (n, h, w, 3)        pixels; (h, w, 3) and channels first as well
    out   name          BYTES (n, k)              the likeliest classes
          confidence    FP32 (n, k)
          known         BOOL (n)                  false: none of these
          familiarity   FP32 (n)
"""

import base64
import binascii
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError

from fewmore.classifier.results import Prediction
from fewmore.errors import DataError

INPUT = "image"
OUTPUTS = {"name": "BYTES", "confidence": "FP32", "known": "BOOL", "familiarity": "FP32"}
TOP = 5  # classes, unless a request says otherwise
MOST_TOP = 100
NUMPY_TYPES = {"FP32": np.dtype("<f4"), "BOOL": np.dtype(bool)}
MOST_PARAMETERS = 100
MOST_DIMENSIONS = 8
SHOWN = 100  # characters of what was sent, in a message
MOST_DIGITS = 15  # of a length: Python refuses to read a number of thousands
WRONG_LENGTH = "Inference-Header-Content-Length must be the number of bytes of JSON"


def _few(parameters: Any) -> Any:
    """Refuse too many parameters before each of them is checked."""
    if isinstance(parameters, dict) and len(parameters) > MOST_PARAMETERS:
        raise ValueError(f"at most {MOST_PARAMETERS} parameters can be given")
    return parameters


# A body of megabytes can hold millions of wrong elements: the check stops at the first one.
Parameters = Annotated[dict[str, str | bool | int | float], BeforeValidator(_few)]
Dimension = Annotated[StrictInt, Field(ge=0, le=2**31)]


class RequestInput(BaseModel):
    """Hold one input tensor."""

    name: str
    shape: Annotated[list[Dimension], Field(max_length=MOST_DIMENSIONS)]
    datatype: str
    parameters: Parameters = {}
    data: list[Any] | None = Field(None, description="Left out where binary data follows the JSON.")


class RequestOutput(BaseModel):
    """Name an output tensor that is wanted."""

    name: str
    parameters: Parameters = {}


class InferRequest(BaseModel):
    """Ask for the classes of images. The parameter `top` says how many of them to name."""

    id: str | None = None
    parameters: Parameters = {}
    inputs: Annotated[list[RequestInput], Field(fail_fast=True)]
    outputs: Annotated[list[RequestOutput], Field(fail_fast=True)] | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "inputs": [
                    {"name": INPUT, "shape": [1], "datatype": "BYTES", "data": ["iVBORw0KGgo="]}
                ],
                "parameters": {"top": 3},
            }
        }
    )


class ResponseOutput(BaseModel):
    """Hold one output tensor."""

    name: str
    datatype: str
    shape: list[int]
    parameters: Parameters = {}
    data: list[Any] | None = Field(None, description="Left out where binary data follows the JSON.")


class InferResponse(BaseModel):
    """Name the likeliest classes of images."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[ResponseOutput]


class InferError(BaseModel):
    """Say what is wrong."""

    error: str


@dataclass(frozen=True)
class Inference:
    """Hold a request that was read: the images as files, and how the response is wanted."""

    request: InferRequest
    images: list[bytes]
    top: int
    binary: dict[str, bool]  # wanted outputs, and whether as bytes behind the JSON


def read(body: bytes, json_length: str | None, most_images: int, most_json: int) -> Inference:
    """Read a request; `json_length` is the header Inference-Header-Content-Length."""
    split = len(body) if json_length is None else _parse_length(json_length)
    if split > len(body):
        raise DataError(WRONG_LENGTH)
    if split > most_json:
        raise DataError(
            f"the JSON has {split:,} bytes, and at most {most_json:,} can be: "
            "send images as binary data, or fewer of them"
        )
    try:
        request = InferRequest.model_validate_json(body[:split])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:SHOWN] or "the body"
        raise DataError(f"the request is not as it should be ({where}: {first['msg']})") from error
    if [tensor.name for tensor in request.inputs] != [INPUT]:
        raise DataError(f"the model has one input: give {INPUT!r}, and nothing else")
    images = _read_images(request.inputs[0], body[split:], most_images)
    top = request.parameters.get("top", TOP)
    if not (isinstance(top, int) and not isinstance(top, bool) and 1 <= top <= MOST_TOP):
        raise DataError(f"the parameter top must be a whole number from 1 to {MOST_TOP}")
    return Inference(request, images, top, _wanted_outputs(request))


def _parse_length(text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) <= MOST_DIGITS):
        raise DataError(WRONG_LENGTH)
    return int(text)


def _wanted_outputs(request: InferRequest) -> dict[str, bool]:
    """Return the names of the wanted outputs, and whether each is wanted as binary data."""
    default = request.parameters.get("binary_data_output") is True
    if not request.outputs:
        return dict.fromkeys(OUTPUTS, default)
    for output in request.outputs:
        if output.name not in OUTPUTS:
            raise DataError(
                f"there is no output {output.name[:SHOWN]!r}: there are {', '.join(OUTPUTS)}"
            )
    return {
        output.name: output.parameters.get("binary_data", default) is True
        for output in request.outputs
    }


# Images


def _read_images(tensor: RequestInput, binary: bytes, most: int) -> list[bytes]:
    size = tensor.parameters.get("binary_data_size")
    if (tensor.data is None) == (size is None):
        raise DataError("an input has either data or the parameter binary_data_size")
    if (size if size is not None else 0) != len(binary):
        said = str(size)[:SHOWN]
        raise DataError(f"{len(binary):,} bytes follow the JSON, and binary_data_size is {said}")
    if tensor.datatype == "BYTES":
        files = _split_files(binary, most) if tensor.data is None else _decode(tensor.data, most)
        if math.prod(tensor.shape) != len(files):
            raise DataError(f"the shape is {tensor.shape}, and there are {len(files)} images")
        return files
    if tensor.datatype == "UINT8":
        return _read_pixels(tensor, binary, most)
    raise DataError(f"the datatype must be BYTES or UINT8, not {tensor.datatype[:SHOWN]!r}")


def _check_count(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise DataError(f"there are {count} images, and 1 to {most} can be in a request")


def _split_files(data: bytes, most: int) -> list[bytes]:
    """Split what tritonclient writes: four bytes with a length, then so many bytes, and so on."""
    files: list[bytes] = []
    start = 0
    while start < len(data):
        if len(files) == most:
            raise DataError(f"there are more than {most} images: send fewer")
        if start + 4 > len(data):
            raise DataError("the binary data ends within an element's length")
        (length,) = struct.unpack_from("<I", data, start)
        start += 4
        if start + length > len(data):
            raise DataError("the binary data ends within an element")
        files.append(data[start : start + length])
        start += length
    _check_count(len(files), most)
    return files


def _decode(data: Sequence[Any], most: int) -> list[bytes]:
    """Read files that are base64 in JSON."""
    elements = _flat(data)
    _check_count(len(elements), most)
    files: list[bytes] = []
    for element in elements:
        try:
            files.append(base64.b64decode(element, validate=True))
        except (TypeError, ValueError, binascii.Error) as error:
            raise DataError("in JSON, images are texts in base64") from error
    return files


def _flat(data: Sequence[Any]) -> list[Any]:
    """Return the elements of nested lists."""
    flat: list[Any] = []
    for element in data:
        if isinstance(element, list):
            flat += _flat(element)
        else:
            flat.append(element)
    return flat


def _read_pixels(tensor: RequestInput, binary: bytes, most: int) -> list[bytes]:
    shape = tuple(tensor.shape)
    if len(shape) not in (3, 4) or 3 not in (shape[-1], shape[-3]) or 0 in shape:
        raise DataError(
            f"pixels have the shape (h, w, 3), (3, h, w), (n, h, w, 3) or (n, 3, h, w), not {shape}"
        )
    batch = (1, *shape)[-4:]
    _check_count(batch[0], most)
    if tensor.data is None:
        values = np.frombuffer(binary, np.uint8)
    else:
        elements = _flat(tensor.data)
        if not all(type(one) is int and 0 <= one <= 255 for one in elements):
            raise DataError("pixels must be whole numbers from 0 to 255")
        values = np.array(elements, np.uint8)
    if values.size != math.prod(shape):
        raise DataError(f"the shape is {list(shape)}, and there are {values.size:,} numbers")
    pixels = values.reshape(batch)
    if batch[-1] != 3:
        pixels = pixels.transpose(0, 2, 3, 1)
    height, width = pixels.shape[1:3]
    head = b"P6 %d %d 255\n" % (width, height)  # PPM: the plainest file of pixels
    return [head + np.ascontiguousarray(image).tobytes() for image in pixels]


# Responses


def describe_model(name: str, version: int) -> dict[str, Any]:
    """Describe the model and its tensors."""
    shapes = {"name": [-1, -1], "confidence": [-1, -1], "known": [-1], "familiarity": [-1]}
    return {
        "name": name,
        "versions": [str(version)],
        "platform": "fewmore_pytorch",
        "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": output, "datatype": datatype, "shape": shapes[output]}
            for output, datatype in OUTPUTS.items()
        ],
    }


def write(
    inference: Inference, model: str, version: int, predictions: Sequence[Prediction]
) -> tuple[bytes, int | None]:
    """Write a response; return it with the length of its JSON, if binary data follows that."""
    values: dict[str, list[Any]] = {
        "name": [list(prediction.names) for prediction in predictions],
        "confidence": [list(prediction.confidences) for prediction in predictions],
        "known": [prediction.known for prediction in predictions],
        "familiarity": [prediction.familiarity for prediction in predictions],
    }
    tensors, binaries = [], []
    for name, is_binary in inference.binary.items():
        columns = [len(values[name][0])] if isinstance(values[name][0], list) else []
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": OUTPUTS[name],
            "shape": [len(predictions), *columns],
        }
        flat = _flat(values[name])
        if is_binary:
            binaries.append(_to_bytes(OUTPUTS[name], flat))
            tensor["parameters"] = {"binary_data_size": len(binaries[-1])}
        else:
            tensor["data"] = flat
        tensors.append(tensor)
    content: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if inference.request.id is not None:
        content["id"] = inference.request.id
    head = json.dumps({**content, "outputs": tensors}).encode()
    return head + b"".join(binaries), len(head) if binaries else None


def _to_bytes(datatype: str, flat: Sequence[Any]) -> bytes:
    if datatype != "BYTES":
        return np.array(flat, NUMPY_TYPES[datatype]).tobytes()
    texts = [text.encode() for text in flat]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)
