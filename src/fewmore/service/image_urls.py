"""Fetch images by URL, from hosts that the operator allows and no others.

Otherwise anybody could let the service read what only it can reach. So a URL's origin must be one
of those that were allowed, redirects are not followed, and bytes and seconds are limited.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fewmore.errors import ConfigError, DataError
from fewmore.service.limits import Busy, Limits
from fewmore.service.proxy import PublicURL

THREADS = 8
REQUESTS = 4  # that fetch images at once; each may need as much memory as an upload
SECONDS = 10.0  # to wait for a host
CHUNK = 65536  # bytes


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Follow none: the other address may be anywhere."""


def parse_host(text: str) -> str:
    """Return the origin of an allowed host, such as images.example or http://10.0.0.5:9000."""
    try:
        url = PublicURL.parse(text if "://" in text else f"https://{text}/")
    except ConfigError:
        url = None
    if url is None or url.path:
        raise ConfigError(
            f"{text!r} is no host of images: give it as in --image-host images.example"
        )
    return url.origin


class ImageURLs:
    """Fetch images from allowed origins."""

    def __init__(self, origins: Sequence[str], limits: Limits) -> None:
        self.origins = tuple(origins)
        self.limits = limits
        self._requests = 0
        self._threads = ThreadPoolExecutor(THREADS, "image-urls")
        self._opener = build_opener(_NoRedirects)

    async def fetch(self, urls: Sequence[str]) -> list[bytes]:
        """Return the content of all URLs, in their order."""
        for number, url in enumerate(urls, 1):
            self._check(number, url)
        if self._requests >= REQUESTS:
            raise Busy
        self._requests += 1
        try:
            return await self._fetch_all(urls)
        finally:
            self._requests -= 1

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, number: int, url: str) -> None:
        try:
            parts = urlsplit(url)
            origin = PublicURL.parse(f"{parts.scheme}://{parts.netloc}/").origin
        except (ConfigError, ValueError):
            origin = ""
        if origin not in self.origins or not url.isascii() or not url.isprintable():
            hosts = ", ".join(self.origins)
            raise DataError(
                f"URL {number} is not from a host that this service fetches images from: {hosts}"
            )

    async def _fetch_all(self, urls: Sequence[str]) -> list[bytes]:
        until = time.monotonic() + self.limits.body_seconds
        loop = asyncio.get_running_loop()
        tasks = [
            loop.run_in_executor(self._threads, self._fetch, number, url, until)
            for number, url in enumerate(urls, 1)
        ]
        images: list[bytes] = []
        try:
            for number, task in enumerate(tasks, 1):
                try:  # here too: a thread cannot leave a host that sends its head slowly
                    images.append(await asyncio.wait_for(task, until - time.monotonic()))
                except asyncio.TimeoutError as error:
                    raise _too_late(number) from error
                if sum(map(len, images)) > self.limits.body_bytes:
                    raise DataError(
                        f"the images have more than {self.limits.body_bytes:,} bytes in all: "
                        "name fewer or smaller ones"
                    )
        finally:
            for task in tasks:
                task.cancel()
        return images

    def _fetch(self, number: int, url: str, until: float) -> bytes:
        try:
            left = min(SECONDS, until - time.monotonic())
            if left <= 0:
                raise TimeoutError
            with self._opener.open(url, timeout=left) as response:
                return self._read(number, response, until)
        except HTTPError as error:
            error.close()  # it holds the connection
            raise DataError(
                f"URL {number} cannot be fetched: its host says {error.code}"
            ) from error
        except TimeoutError as error:
            raise _too_late(number) from error
        except (HTTPException, URLError, OSError, ValueError) as error:
            raise DataError(f"URL {number} cannot be fetched: its host does not answer") from error

    def _read(self, number: int, response: HTTPResponse, until: float) -> bytes:
        content = bytearray()
        while chunk := response.read1(CHUNK):  # what there is: the clock is looked at in between
            content += chunk
            if len(content) > self.limits.image_bytes:
                raise DataError(
                    f"the image of URL {number} has more than {self.limits.image_bytes:,} bytes"
                )
            if time.monotonic() > until:
                raise TimeoutError
        return bytes(content)


def _too_late(number: int) -> DataError:
    return DataError(f"URL {number} cannot be fetched in time")
