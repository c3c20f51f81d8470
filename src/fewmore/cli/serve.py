"""Define `fewmore serve`: a classifier over HTTP, with a page for teaching it."""

import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.cli.terminal import plain
from fewmore.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

SHORTEST_TOKEN = 8  # characters


def serve(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL", help="A model file, such as birds.fewmore.", show_default=False
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="Serve a model of drawn characters, trained the first time."),
    ] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen at; others than this machine need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            help="Needed for changes. Default: $FEWMORE_TOKEN, or a random one where needed.",
            show_default=False,
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Reading needs the token as well.")
    ] = False,
    thumbnails: Annotated[
        bool,
        typer.Option(
            "--thumbnails/--no-thumbnails",
            help="Store small copies of taught images; without, those that are there are removed.",
        ),
    ] = True,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Predict and change nothing, on the disk or else.")
    ] = False,
) -> None:
    """Serve a model over HTTP, with a page for teaching it.

    What is taught is on the disk before it is acknowledged, and in the model file soon after.

    Example: fewmore serve birds.fewmore

    Example: fewmore serve --demo
    """
    if (model is None) != demo:
        raise ConfigError(
            "give a model file, as in fewmore serve birds.fewmore, or --demo, and not both"
        )
    token = _check_token(token or os.environ.get("FEWMORE_TOKEN") or None)
    try:
        from fewmore.service.app import create_app
        from fewmore.service.guard import LOOPBACK, Access
        from fewmore.service.server import keep_memory, listen
        from fewmore.service.server import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs some more packages ({error.name} is missing): "
            "pip install 'fewmore[service]'"
        ) from error
    import torch

    from fewmore.cli.demo import demo_model
    from fewmore.service.store import Store

    keep_memory()
    out = plain()
    is_local = host in LOOPBACK
    if token is None and (private or not is_local):
        token = secrets.token_urlsafe(24)
    hosts = tuple({*LOOPBACK, host.lower()}) if is_local else None
    store = Store(model or demo_model(out, thumbnails), thumbnails, read_only)
    torch.set_num_threads(1)  # each of the service's workers computes on one core
    app = create_app(store, Access(token, private, hosts), demo=demo)
    try:
        listener = listen(host, port)
    except ConfigError:
        store.close()
        raise
    _announce(out, _address(host, listener), token, private, is_local)
    run(app, listener)


def _check_token(token: str | None) -> str | None:
    if token is None:
        return None
    is_plain = token.isascii() and token.isprintable() and " " not in token
    if len(token) < SHORTEST_TOKEN or not is_plain:
        raise ConfigError(
            f"the token must have at least {SHORTEST_TOKEN} characters: "
            "letters, digits and signs, without spaces"
        )
    return token


def _address(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _announce(
    out: "Console", address: str, token: str | None, private: bool, is_local: bool
) -> None:
    """Print where the service is, and what to know before others use it."""
    out.print(f"fewmore is served at {address}{'' if token is None else f'#token={token}'}")
    if token is not None:
        out.print(
            f"{'all requests' if private else 'changes'} need the token, which is in that address: "
            "give it only to people whom you trust"
        )
    if not is_local:
        out.print(
            "note: this is plain HTTP, and others on the way can read it: "
            "put a server with TLS before it outside of your own network"
        )
    out.print("open it in a browser; Ctrl+C ends it")
