"""Test the service behind the proxies of deploy/, and with addresses of its own."""

import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fewmore.errors import ConfigError
from fewmore.service.guard import Access
from fewmore.service.proxy import PublicURL, TrustedProxies

Inside = Callable[..., AbstractContextManager[Any]]
Serving = Callable[..., AbstractContextManager[Any]]
MakeImage = Callable[..., bytes]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Write a certificate for fewmore.example and 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:fewmore.example,IP:127.0.0.1"
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-addext", names]
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(
        ["openssl", "req", *kind, "-subj", "/CN=fewmore.example", *files],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


# Proxies


def nginx_command(folder: Path, ports: dict[str, int], tls: tuple[Path, Path]) -> list[str]:
    """Write what nginx needs around deploy/nginx.conf."""
    site = (DEPLOY / "nginx.conf").read_text()
    for example, own in (
        ("listen 443 ssl", f"listen 127.0.0.1:{ports['proxy']} ssl"),
        ("/etc/ssl/fewmore.example.pem", str(tls[0])),
        ("/etc/ssl/fewmore.example.key", str(tls[1])),
        ("127.0.0.1:8000", f"127.0.0.1:{ports['birds']}"),
        ("127.0.0.1:8001", f"127.0.0.1:{ports['ferns']}"),
    ):
        assert example in site
        site = site.replace(example, own)
    paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{name}_temp_path {folder}/{name};" for name in paths)
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\n"
        f"events {{}}\nhttp {{ access_log off; {temporary}\n{site}\n}}\n"
    )
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy_command(folder: Path, ports: dict[str, int], tls: tuple[Path, Path]) -> list[str]:
    """Write what Caddy needs around deploy/Caddyfile."""
    site = (DEPLOY / "Caddyfile").read_text()
    address = f"https://fewmore.example:{ports['proxy']} {{\n\tbind 127.0.0.1\n"
    for example, own in (
        ("\nfewmore.example {\n", f"\n{address}\ttls {tls[0]} {tls[1]}\n"),
        ("127.0.0.1:8000", f"127.0.0.1:{ports['birds']}"),
        ("127.0.0.1:8001", f"127.0.0.1:{ports['ferns']}"),
    ):
        assert example in site
        site = site.replace(example, own)
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(options + site)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


COMMANDS = {"nginx": nginx_command, "caddy": caddy_command}


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """Run a proxy until the end of the context."""
    with (folder / "log").open("wb") as log:
        environment = {"PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(folder)}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            until = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < until, (folder / "log").read_text()
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(params=["nginx", "caddy"])
def behind(
    request: pytest.FixtureRequest,
    model: Path,
    serving: Serving,
    certificate: tuple[Path, Path],
    tmp_path: Path,
) -> Iterator[tuple[str, Any, Any]]:
    """Run two services behind a proxy; return its origin and the two processes."""
    name: str = request.param
    if shutil.which(name, path="/usr/sbin:/usr/bin:/bin") is None:
        pytest.skip(f"needs {name}: apt-get install {name} (.ci/run does)")
    folder = tmp_path / "proxy"
    folder.mkdir()
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    ferns = Path(shutil.copy(model, model.with_name("ferns.fewmore")))
    proxy = free_port()
    origin = f"https://fewmore.example:{proxy}"
    options = ("--trusted-proxy", "127.0.0.1", "--token-file", str(token_file))
    with ExitStack() as stack:
        first = stack.enter_context(serving(model, "--public-url", f"{origin}/", *options))
        second = stack.enter_context(serving(ferns, "--public-url", f"{origin}/ferns/", *options))
        ports = {
            "proxy": proxy,
            "birds": int(first.url.rpartition(":")[2]),
            "ferns": int(second.url.rpartition(":")[2]),
        }
        command = COMMANDS[name](folder, ports, certificate)
        stack.enter_context(running(command, proxy, folder))
        yield origin, first, second


def predict_on_the_page(browser: Any, address: str, data: bytes) -> None:
    """Open the page with its token, drop an image on it and wait for the prediction."""
    page = browser.new_page(ignore_https_errors=True)
    page.goto(f"{address}#token={TOKEN}")
    image = {"name": "a.png", "mimeType": "image/png", "buffer": data}
    page.locator("input[type=file]").first.set_input_files(image)
    page.locator("#verdict", has_text="robin").wait_for()
    page.close()


def test_people_use_it_behind_a_proxy(
    behind: tuple[str, Any, Any], certificate: tuple[Path, Path], image: MakeImage, chromium: Any
):
    origin, first, _ = behind
    for path in ("/", "/ferns/"):
        predict_on_the_page(chromium, f"{origin}{path}", image("robin", 1))
    host = origin.removeprefix("https://")
    transport = httpx2.HTTPTransport(verify=trusting(certificate[0]), local_address="127.0.0.2")
    extensions = {"sni_hostname": "fewmore.example"}
    with httpx2.Client(transport=transport, timeout=30) as http:

        def ask(method: str, path: str, **options: Any) -> Any:
            headers = {"Host": host, **options.pop("headers", {})}
            url = f"https://127.0.0.1:{host.rpartition(':')[2]}{path}"
            return http.request(method, url, headers=headers, extensions=extensions, **options)

        files = [("images", ("a.png", image("robin"), "image/png"))]
        page = {"Origin": origin, "Sec-Fetch-Site": "same-origin", **BEARER}
        foreign = {**page, "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        for prefix in ("", "/ferns"):
            assert "<title>" in ask("GET", f"{prefix}/").text
            assert ask("GET", f"{prefix}/app.js").status_code == 200
            assert ask("GET", f"{prefix}/api/model").status_code == 401
            assert ask("GET", f"{prefix}/api/model", headers=BEARER).status_code == 200
            predict = f"{prefix}/api/predict"
            assert ask("POST", predict, files=files, headers=page).status_code == 200
            assert ask("POST", predict, files=files, headers=foreign).status_code == 403
            taught = ask(
                "POST", f"{prefix}/api/classes", data={"name": "okapi"}, files=files, headers=page
            )
            assert taught.json()["version"] == 2
            document = ask("GET", f"{prefix}/openapi.json", headers=BEARER).json()
            assert document["servers"] == [{"url": f"{origin}{prefix}/"}]
        moved = ask("GET", "/ferns")
        assert moved.status_code in (301, 302)
        assert moved.headers["location"].endswith("/ferns/")
        events = f"https://127.0.0.1:{host.rpartition(':')[2]}/api/events"
        headers = {"Host": host, "Last-Event-ID": "1", **BEARER}
        with http.stream("GET", events, headers=headers, extensions=extensions) as stream:
            assert any("okapi" in line for line in stream.iter_lines())  # not held back
        wrong = {"Authorization": "Bearer wrong"}
        assert ask("GET", "/api/model", headers=wrong).status_code == 401
    first.stop()
    assert "a wrong token came from 127.0.0.2" in first.process.stderr.read()


# Public URLs


@pytest.mark.parametrize(
    ("text", "origin", "path"),
    [
        ("https://fewmore.example", "https://fewmore.example", ""),
        ("https://Fewmore.example:443/x/y/", "https://fewmore.example", "/x/y"),
        ("http://10.0.0.1:8080/", "http://10.0.0.1:8080", ""),
        ("http://[2001:db8::1]:80/", "http://[2001:db8::1]", ""),
    ],
)
def test_public_urls_are_read(text: str, origin: str, path: str):
    url = PublicURL.parse(text)
    assert (url.origin, url.path, str(url)) == (origin, path, f"{origin}{path}/")


@pytest.mark.parametrize(
    "text",
    [
        *("fewmore.example", "ftp://a/", "https://", "https://a/?b", "https://[/", ""),
        *("https://a:x/", "https://user@a/", "https://ä.example/"),
        "https://fewmore.example/api/x/",
    ],
)
def test_other_texts_are_no_public_urls(text: str):
    with pytest.raises(ConfigError, match=r"public URL|service's own"):
        PublicURL.parse(text)


def test_trusted_proxies_are_addresses_and_networks():
    proxies = TrustedProxies.parse(["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"])
    assert all(one in proxies for one in ("127.0.0.1", "10.1.2.3", "2001:db8::7"))
    assert not any(one in proxies for one in ("127.0.0.2", "11.0.0.1", "nobody", ""))
    assert proxies.for_uvicorn() == ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"]
    with pytest.raises(ConfigError, match="--trusted-proxy"):
        TrustedProxies.parse(["nginx"])


def test_hosts_and_origins_of_public_urls_are_own(model: Path, inside: Inside):
    url = PublicURL.parse("https://fewmore.example/x/")
    with inside(model, access=Access(public_urls=(url,))) as client:

        def undo(**headers: str) -> int:
            status: int = client.http.post("/api/sessions/undo", headers=headers).status_code
            return status

        allowed = 409  # there is nothing to undo
        for host in ("fewmore.example", "127.0.0.1:8000", "localhost"):  # as proxies set it
            assert undo(Host=host, Origin="https://fewmore.example") == allowed
        assert undo(Host="fewmore.example", Origin="http://fewmore.example") == 403
        assert undo(Host="fewmore.example", Origin="https://fewmore.example.evil") == 403
        assert undo(Host="127.0.0.1:8000", Origin="http://127.0.0.1:8000") == allowed
        assert undo(Host="evil.example", Origin="https://fewmore.example") == 400
        for path in ("/api/model", "/x/api/model", "/", "/x/", "/x/app.js"):
            assert client.http.get(path).status_code == 200, path
        assert client.http.get("/x/x/api/model").status_code == 404
        assert client.http.get("/openapi.json").json()["servers"] == [{"url": str(url)}]
        moved = client.http.get("/x", follow_redirects=False)
        assert (moved.status_code, moved.headers["location"]) == (308, "/x/")


def test_events_behind_a_path_end_with_the_service(model: Path, serving: Serving):
    """Let the proxy send the whole path, as some do."""
    url = ("--public-url", "https://fewmore.example/x/")
    with (
        serving(model, *url, FEWMORE_TOKEN=TOKEN) as served,
        httpx2.stream("GET", f"{served.url}/x/api/events", headers=BEARER, timeout=60) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines).startswith("retry")
        served.process.send_signal(signal.SIGINT)
        for _ in lines:
            pass
        assert served.process.wait(timeout=60) == 0
        assert served.process.stderr.read() == ""  # nothing had to be cut off


def test_hosts_are_checked_at_every_address(model: Path, serving: Serving):
    """Ask as a page of another site would whose name has our address (DNS rebinding)."""
    token = {"FEWMORE_TOKEN": TOKEN}
    with serving(model, "--host", "0.0.0.0", "--public-reading", **token) as served:
        port = served.url.rpartition(":")[2]
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            for host, status in (
                ("evil.example", 400),
                ("", 400),
                ("localhost", 200),
                (f"127.0.0.1:{port}", 200),
                ("192.168.7.7", 200),  # no other site's name
                (socket.gethostname(), 200),
            ):
                assert http.get("/api/model/file", headers={"Host": host}).status_code == status
        assert "0.0.0.0" not in served.url  # an address that others can open


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_two_colons_listen_to_both(model: Path, serving: Serving):
    with serving(model, "--host", "::", FEWMORE_TOKEN=TOKEN) as served:
        port = served.url.rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]"):
            with httpx2.Client(base_url=f"http://{host}:{port}", timeout=30) as http:
                assert http.get("/health").status_code == 200
                assert http.get("/api/model", headers=BEARER).status_code == 200


# TLS


def test_it_speaks_tls(model: Path, serving: Serving, certificate: tuple[Path, Path]):
    tls = ("--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]))
    with serving(model, *tls) as served:
        assert served.url.startswith("https://127.0.0.1:")
        with httpx2.Client(
            base_url=served.url, verify=trusting(certificate[0]), timeout=30
        ) as http:
            assert http.get("/ready").json()["status"] == "ready"
            headers = {"Origin": served.url}
            assert http.post("/api/sessions/undo", headers=headers).status_code == 409
        served.stop()
        assert served.process.stderr.read() == ""
