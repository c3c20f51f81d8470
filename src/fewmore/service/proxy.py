"""Know the addresses that the service has for others: behind a proxy, and in its own network.

A proxy receives requests at a public URL and sends them on. Its host is then one of ours, its
origin is that of our page, and its path may still be at the beginning of a request's path. Proxies
that are trusted say in X-Forwarded-For whom a request comes from.
"""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fewmore.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OWN_PATHS = ("api", "v2", "health", "ready", "metrics", "openapi.json")
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class PublicURL:
    """Hold an address at which a proxy is reached, such as https://fewmore.example/birds/."""

    origin: str  # https://fewmore.example
    path: str = ""  # /birds

    @classmethod
    def parse(cls, text: str) -> "PublicURL":
        """Check an address; write it as browsers do."""
        try:
            parts = urlsplit(text.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        extra = parts.query or parts.fragment or "@" in parts.netloc
        if parts.scheme not in DEFAULT_PORTS or not host or extra or not text.isascii():
            raise ConfigError(
                f"{text!r} is no public URL: give it as in --public-url https://fewmore.example/"
            )
        path = parts.path.rstrip("/")
        if path.split("/")[1:2] and path.split("/")[1] in OWN_PATHS:
            raise ConfigError(
                f"the path of {text} begins like one of the service's own "
                f"({', '.join(OWN_PATHS)}): choose another one, such as /fewmore/"
            )
        name = f"[{host}]" if ":" in host else host
        is_default = port is None or port == DEFAULT_PORTS[parts.scheme]
        return cls(f"{parts.scheme}://{name}{'' if is_default else f':{port}'}", path)

    def __str__(self) -> str:
        return f"{self.origin}{self.path}/"

    @property
    def netloc(self) -> str:
        """Return the Host header of requests to it."""
        return urlsplit(self.origin).netloc

    @property
    def host(self) -> str:
        """Return its host's name."""
        return urlsplit(self.origin).hostname or ""


@dataclass(frozen=True)
class TrustedProxies:
    """Hold the addresses and networks of proxies whose X-Forwarded-For is believed."""

    networks: tuple["ipaddress.IPv4Network | ipaddress.IPv6Network", ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "TrustedProxies":
        """Check addresses such as 127.0.0.1 and networks such as 10.0.0.0/8."""
        try:
            return cls(tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts))
        except ValueError as error:
            raise ConfigError(
                f"a trusted proxy must be an address or a network ({error}): "
                "give it as in --trusted-proxy 127.0.0.1 or --trusted-proxy 10.0.0.0/8"
            ) from error

    def __contains__(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)

    def for_uvicorn(self) -> list[str]:
        """Return them as `forwarded_allow_ips`."""
        return [
            str(network.network_address if network.num_addresses == 1 else network)
            for network in self.networks
        ]


class WithoutPrefix:
    """Take the path of a public URL away from the beginning of a request's path.

    Some proxies do this themselves, others send the whole path.
    """

    def __init__(self, app: ASGIApp, prefixes: Sequence[str]) -> None:
        self.app = app
        self.prefixes = sorted({prefix for prefix in prefixes if prefix}, key=len, reverse=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        for prefix in self.prefixes:
            if path == prefix:
                await RedirectResponse(f"{prefix}/", 308)(scope, receive, send)
                return
            if path.startswith(f"{prefix}/"):
                raw = (scope.get("raw_path") or b"").removeprefix(prefix.encode())
                # In place: the server looks into its own scope at the end of the service.
                scope.update(path=path.removeprefix(prefix), raw_path=raw)
                break
        await self.app(scope, receive, send)


def own_names(host: str) -> tuple[str, ...]:
    """Return the names that the Host header may have for a service that listens at `host`."""
    if host in LOOPBACK:
        return LOOPBACK
    machine = socket.gethostname().lower()
    names = (host, machine, f"{machine.partition('.')[0]}.local", socket.getfqdn())
    return tuple(dict.fromkeys((*LOOPBACK, *(name.lower().rstrip(".") for name in names))))


def is_address(host: str) -> bool:
    """Return whether a host is a number: then no other site's name can stand for ours."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def address_for_others(host: str) -> str:
    """Return an address at which other machines may reach a service that listens at `host`."""
    if host not in ("0.0.0.0", "::", ""):
        return host
    family, target = (socket.AF_INET, "192.0.2.1")  # reserved for documentation: nothing is sent
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return socket.gethostname()
