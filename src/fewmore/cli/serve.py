"""Define `fewmore serve`: a classifier over HTTP, with a page for teaching it."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fewmore.cli import serve_options as options
from fewmore.cli.terminal import plain
from fewmore.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from starlette.types import ASGIApp

    from fewmore.service.guard import Access
    from fewmore.service.limits import Limits
    from fewmore.service.proxy import TrustedProxies
    from fewmore.service.server import TLS

SHORTEST_TOKEN = 16  # characters


def serve(
    model: options.ServedModel = None,
    models: options.ModelsFolder = None,
    demo: options.Demo = False,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    public_url: options.PublicURLs = None,
    trusted_proxy: options.Proxies = None,
    tls_cert: options.Certificate = None,
    tls_key: options.CertificateKey = None,
    token: options.Token = None,
    token_file: options.TokenFile = None,
    public_reading: options.PublicReading = False,
    image_host: options.ImageHosts = None,
    read_only: options.ReadOnly = False,
    thumbnails: options.Thumbnails = True,
    device: options.Device = "auto",
    workers: options.Workers = None,
    limit: options.LimitTexts = None,
    log_format: options.LogFormat = "text",
) -> None:
    """Serve a model over HTTP, with a page for teaching it.

    What is taught is on the disk before it is acknowledged, and in the model file soon after.

    Example: fewmore serve birds.fewmore

    Example: fewmore serve --models FOLDER

    Example: fewmore serve --demo
    """
    if models is not None and (demo or model is not None):
        raise ConfigError(
            f"--models {models} is all that is served: leave out the model and --demo"
        )
    if models is None and (model is None) != demo:
        raise ConfigError(
            "give a model file, as in fewmore serve birds.fewmore, or --demo, and not both"
        )
    given = _given_token(token, token_file)
    _need_packages()
    from fewmore.cli.demo import demo_model
    from fewmore.service import logs
    from fewmore.service.app import create_app
    from fewmore.service.limits import Limits
    from fewmore.service.many import ManyModels, Models, StoreOptions
    from fewmore.service.proxy import TrustedProxies
    from fewmore.service.server import keep_memory, tls_files
    from fewmore.service.store import Store

    access, drawn = _access(host, public_url or [], given, public_reading, image_host or [])
    proxies = TrustedProxies.parse(trusted_proxy or ())
    limits = Limits.parse(limit or ())
    tls = tls_files(tls_cert, tls_key)
    logs.configure(log_format)
    keep_memory()
    out = plain()
    if models is not None:
        stores = StoreOptions(thumbnails, read_only, device)
        many = ManyModels(Models(models, access, limits, workers, stores))
        _run(out, many, lambda: None, access, drawn, limits, host, port, proxies, tls)
        return
    store = Store(model or demo_model(thumbnails), thumbnails, read_only, device)
    app = create_app(store, access, limits, demo, workers)
    _run(out, app, store.close, access, drawn, limits, host, port, proxies, tls)


def _need_packages() -> None:
    try:
        import fewmore.service.app  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs some more packages ({error.name} is missing): "
            "pip install 'fewmore[service]'"
        ) from error


def _access(
    host: str, urls: list[str], given: str | None, public_reading: bool, image_hosts: list[str]
) -> "tuple[Access, str | None]":
    """Decide who may send requests; draw a token where others can and none was given."""
    from fewmore.service.guard import Access
    from fewmore.service.image_urls import parse_host
    from fewmore.service.proxy import LOOPBACK, PublicURL, own_names

    public_urls = tuple(map(PublicURL.parse, urls))
    is_local = host in LOOPBACK and not public_urls
    drawn = None if given or is_local else secrets.token_urlsafe(24)
    origins = tuple(map(parse_host, image_hosts))
    names = own_names(host)
    return Access(given or drawn, public_reading, names, public_urls, origins), drawn


def _run(
    out: "Console",
    app: "ASGIApp",
    close: Callable[[], None],
    access: "Access",
    drawn: str | None,
    limits: "Limits",
    host: str,
    port: int,
    proxies: "TrustedProxies",
    tls: "TLS | None",
) -> None:
    """Listen, say where, and serve until the process is interrupted."""
    import torch

    from fewmore.service.proxy import LOOPBACK
    from fewmore.service.server import listen
    from fewmore.service.server import serve as run

    torch.set_num_threads(1)  # each of the service's workers computes on one core
    try:
        listener = listen(host, port)
    except ConfigError:
        close()
        raise
    local = _address(host, listener.getsockname()[1], tls is not None)
    _announce(out, [local, *map(str, access.public_urls)], access, drawn)
    if tls is None and host not in LOOPBACK:
        out.print(
            "note: this is plain HTTP, and others on the way can read it: outside of your own "
            "network, give --tls-cert and --tls-key, or put a proxy with TLS before it"
        )
    out.print("open it in a browser; Ctrl+C ends it")
    run(app, listener, limits, proxies, tls)


def _given_token(token: str | None, file: Path | None) -> str | None:
    """Return the token that was given, if any; refuse one that can be guessed or not be sent."""
    if token is not None and file is not None:
        raise ConfigError("give --token or --token-file, and not both")
    if file is not None:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ConfigError(f"the token cannot be read from {file} ({reason})") from error
    elif token is None:
        token = os.environ.get("FEWMORE_TOKEN") or None
    if token is None:
        return None
    is_plain = token.isascii() and token.isprintable() and " " not in token
    if len(token) < SHORTEST_TOKEN or not is_plain:
        raise ConfigError(
            f"the token must have at least {SHORTEST_TOKEN} characters: "
            "letters, digits and signs, without spaces, as openssl rand -hex 24 prints them"
        )
    return token


def _address(host: str, port: int, has_tls: bool) -> str:
    from fewmore.service.proxy import address_for_others

    name = address_for_others(host)
    scheme = "https" if has_tls else "http"
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}/"


def _announce(out: "Console", addresses: list[str], access: "Access", drawn: str | None) -> None:
    """Print where the service is, and what its token is needed for.

    A token that was given is not printed: logs of systemd or Docker would keep it.
    """
    first, *public = [f"{one}#token={drawn}" if drawn else one for one in addresses]
    out.print(f"fewmore is served at {first}")
    for address in public:
        out.print(f"and, behind a proxy, at {address}")
    if access.token is not None:
        needing = "changes" if access.public_reading else "all requests"
        where = "which is in that address" if drawn else "which was given at the start"
        out.print(f"{needing} need the token, {where}: give it only to people whom you trust")
