"""Serve a folder of models on a Ray cluster: Ray Serve with model multiplexing.

    serve run fewmore.service.ray_serve:build models=/shared/models replicas=4 token=…

An ingress checks requests, as a service on one machine does, and sends each to a replica. Ray sends
all requests for a model to the replica that has it, so that a model has one writer; its lock sees
to it where two replicas are asked for the same model at once. A replica that dies gives its locks
back, and another one loads its models. The folder must be one that all nodes share.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray.exceptions import RayError
from starlette.types import Message, Receive, Scope, Send

from fewmore.errors import ModelFileError
from fewmore.service.guard import Access
from fewmore.service.limits import Limits
from fewmore.service.many import ManyModels, Models, NoRoom, StoreOptions, unusable
from fewmore.service.problems import RETRY_SOON, problem
from fewmore.service.proxy import LOOPBACK, PublicURL

REPLICA = "fewmore-models"  # the name of the deployment that has the models
ELSEWHERE: Message = {"type": "fewmore.elsewhere"}  # says that another replica has the model
TRIES = 5  # to find the replica that has a model
TRY_SECONDS = 1.0  # between two tries: replicas tell Ray about their models in less
# What of a request's scope is sent to a replica; the rest are objects of this process.
SENT = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string"),
    *("root_path", "headers", "client", "server"),
)

log = logging.getLogger("fewmore.service")


class Arguments(BaseModel):
    """Hold the arguments of a deployment, as `serve run` and its config files give them."""

    models: str  # a folder of model files that all nodes share
    replicas: int = 1
    workers: int = 1  # cores of a replica
    gpus: float = 0.0  # of a replica
    token: str | None = None
    public_reading: bool = False
    public_url: str | None = None
    hosts: list[str] = []  # names that requests may ask for, beside addresses and the public URL
    thumbnails: bool = True
    read_only: bool = False
    model_bytes: int = Limits().model_bytes  # of models that a replica has loaded

    def open(self) -> Models:
        """Return the models of the folder."""
        urls = () if self.public_url is None else (PublicURL.parse(self.public_url),)
        names = (*LOOPBACK, *self.hosts)
        return Models(
            Path(self.models),
            Access(self.token, self.public_reading, names, urls),
            Limits(model_bytes=self.model_bytes),
            self.workers,
            StoreOptions(self.thumbnails, self.read_only, "cuda" if self.gpus else "cpu"),
        )


class Replica:
    """Load models and respond to the requests that the ingress sends."""

    async def __init__(self, arguments: Arguments) -> None:  # type: ignore[misc]
        import torch

        torch.set_num_threads(1)  # each worker computes on one core
        self.models = arguments.open()
        self._ending = AsyncExitStack()
        await self._ending.enter_async_context(self.models.lifespan(FastAPI()))

    async def __del__(self) -> None:
        await self._ending.aclose()

    # Ray counts models; what is loaded of them is bounded by `model_bytes`.
    @serve.multiplexed(max_num_models_per_replica=-1)  # type: ignore[untyped-decorator]
    async def claim(self, name: str) -> str:
        """Let Ray send further requests for a model here."""
        return name

    async def respond(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """Yield the messages of a model's response."""
        name = serve.get_multiplexed_model_id()
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        received: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if received:
                return received.pop()
            await asyncio.Event().wait()  # if the client goes, Ray cancels this
            raise AssertionError("nobody sets the event")

        async def answer() -> None:
            try:
                async with self.models.using(name):
                    await self.claim(name)
            except ModelFileError as error:
                log.info("%s", error)
                await messages.put(ELSEWHERE)
                return
            except NoRoom:
                pass  # which the response says
            await self.models.ask(name, scope, receive, messages.put)

        answering = asyncio.create_task(answer())
        answering.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
            await answering
        finally:
            answering.cancel()


def build(arguments: Arguments) -> "serve.Application":
    """Return the application: an ingress, and replicas behind it."""

    def build_ingress() -> ManyModels:
        own = serve.get_replica_context().app_name
        replicas = serve.get_deployment_handle(REPLICA, app_name=own)

        async def ask(name: str, scope: Scope, receive: Receive, send: Send) -> None:
            await _ask_replica(replicas, name, scope, receive, send)

        return ManyModels(arguments.open(), ask)

    resources = {"num_cpus": arguments.workers, "num_gpus": arguments.gpus}
    replicas = serve.deployment(Replica).options(
        name=REPLICA,
        num_replicas=arguments.replicas,
        max_ongoing_requests=10_000,  # the limits of the service count before
        ray_actor_options=resources,
    )
    ingress = serve.deployment(serve.ingress(build_ingress)()).options(
        name="fewmore", max_ongoing_requests=10_000
    )
    return ingress.bind(replicas.bind(arguments))


async def _ask_replica(
    replicas: Any, name: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send a request to the replica that has a model, and its response back."""
    sent = {key: scope[key] for key in SENT if key in scope}
    body = await _whole_body(receive)
    handle = replicas.options(multiplexed_model_id=name, stream=True)
    responding = False
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(TRY_SECONDS)
        try:
            async for message in handle.respond.remote(sent, body):
                if message["type"] == ELSEWHERE["type"]:
                    break
                responding = True
                await send(message)
        except RayError as error:
            if responding:
                raise
            log.warning("a replica was lost: %s", error)
            detail = "the replica that had the model was lost: look what it knows, and try again"
            await problem(503, detail, RETRY_SOON)(scope, receive, send)
            return
        if responding:
            return
    await unusable()(scope, receive, send)


async def _whole_body(receive: Receive) -> bytes:
    """Read a request's body, whose size the guard has limited."""
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return b"".join(chunks)
