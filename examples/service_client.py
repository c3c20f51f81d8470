"""Talk to a running `fewmore serve` with nothing but Python's own library.

python service_client.py http://127.0.0.1:8000 teach okapi a.jpg b.jpg c.jpg
python service_client.py http://127.0.0.1:8000 predict unknown.jpg
"""

import json
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote


class Client:
    """Send requests to a service; what it refuses is a RuntimeError with its sentence."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def predict(self, *images: str | Path, top: int = 3) -> list[Any]:
        """Return the likeliest classes of each image."""
        answer = self._send("POST", f"/api/predict?top={top}", *_form("", images))
        return list(answer["predictions"])

    def teach(self, name: str, *images: str | Path) -> Any:
        """Teach a new class. The key makes it safe to send the same request again."""
        body, headers = _form(name, images)
        return self._send("POST", "/api/classes", body, {**headers, "Idempotency-Key": _key()})

    def forget(self, name: str, version: int | None = None) -> Any:
        """Forget a class; with a version, only if the model still has it."""
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        return self._send("DELETE", f"/api/classes?name={quote(name)}", b"", headers)

    def undo(self) -> Any:
        """Take back the last change."""
        return self._send("POST", "/api/sessions/undo", b"", {"Idempotency-Key": _key()})

    def classes(self) -> dict[str, int]:
        """Return the known classes with their numbers of images."""
        return {one["name"]: one["images"] for one in self._send("GET", "/api/classes")["classes"]}

    def _send(self, method: str, path: str, body: bytes = b"", headers: Any = None) -> Any:
        request = urllib.request.Request(
            self.address + path, body or None, {**self.headers, **(headers or {})}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            problem = json.load(error)
            raise RuntimeError(f"{error.code}: {problem['detail']}") from error


def _key() -> str:
    return str(uuid.uuid4())


def _form(name: str, images: tuple[str | Path, ...]) -> tuple[bytes, dict[str, str]]:
    """Return a multipart form of a name and image files, with its headers."""
    boundary = uuid.uuid4().hex
    start = f"--{boundary}\r\nContent-Disposition: form-data; name="
    parts = [f'{start}"name"\r\n\r\n{name}\r\n'.encode()] if name else []
    for number, path in enumerate(images):
        head = f'{start}"images"; filename="{number}"\r\nContent-Type: image/*\r\n\r\n'
        parts += [head.encode(), Path(path).read_bytes(), b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def main() -> None:
    """Do what the command line says."""
    address, verb, *words = sys.argv[1:]
    print(json.dumps(getattr(Client(address), verb)(*words), indent=1))


if __name__ == "__main__":
    main()
