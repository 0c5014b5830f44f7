"""Readiness and liveness over HTTP: GET /ready and GET /live, and nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from postbus.errors import InvalidConfigError
from postbus.ops.cli.worker.status import Status

_DEFAULT_HOST = "127.0.0.1"
_LARGEST_HEAD = 8_192
# From the first byte to the last. Whoever asks for health sends a hundred bytes at once.
_MOST_SECONDS = 5.0
_MOST_CONNECTIONS = 64
_LARGEST_BODY = 1_048_576


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """HOST:PORT or PORT. ValueError.

    >>> str(parse_address("8080")), str(parse_address("[::1]:80"))
    ('127.0.0.1:8080', '[::1]:80')
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"{text!r} has no port; expected PORT or HOST:PORT, such as 127.0.0.1:8080")
    return Address(host.removeprefix("[").removesuffix("]") or _DEFAULT_HOST, int(port))


class HealthServer:
    """Answers one question a connection; those who ask too slowly or too much are cut off."""

    def __init__(self, status: Status) -> None:
        self._status = status
        # The oldest first.
        self._connections: dict[asyncio.Task[object], None] = {}

    @contextlib.asynccontextmanager
    async def listen(self, address: Address) -> AsyncIterator[Address]:
        """Answer until the block ends; the address with its true port. InvalidConfigError."""
        try:
            server = await asyncio.start_server(self._serve, address.host, address.port, limit=_LARGEST_HEAD)
        except (OSError, UnicodeError) as error:
            expected = f"an address of this machine that is free; the system says: {error}"
            raise InvalidConfigError("--health", str(address), expected) from error
        try:
            yield Address(address.host, server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in self._connections:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs it in a task"
        if len(self._connections) >= _MOST_CONNECTIONS:
            # Who has waited longest has sent least: a quick question gets its answer all the same.
            next(iter(self._connections)).cancel()
        self._connections[task] = None
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                await self._converse(reader, writer)
        except (TimeoutError, OSError, asyncio.CancelledError):
            pass  # the connection ends, and nobody else is concerned
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            writer.write(_render(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        else:
            writer.write(self._answer(head))
        await writer.drain()
        writer.write_eof()
        # Closed with something unread, a connection is reset and may take our answer with it.
        unread = 0
        while unread < _LARGEST_BODY and (chunk := await reader.read(_LARGEST_HEAD)):
            unread += len(chunk)

    def _answer(self, head: bytes) -> bytes:
        match head.partition(b"\r\n")[0].decode("latin-1").split(" "):
            case [method, target, "HTTP/1.1" | "HTTP/1.0"] if method and target.startswith("/"):
                path = target.partition("?")[0]
            case _:
                return _render(HTTPStatus.BAD_REQUEST)
        if path not in ("/live", "/ready"):
            return _render(HTTPStatus.NOT_FOUND, method=method)
        if method not in ("GET", "HEAD"):
            return _render(HTTPStatus.METHOD_NOT_ALLOWED)
        if path == "/live":
            is_good, body = self._status.is_live, dict[str, object](is_live=self._status.is_live)
        else:
            is_good, body = self._status.is_ready, self._status.describe()
        return _render(HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE, body, method)


def _render(status: HTTPStatus, body: dict[str, object] | None = None, method: str = "GET") -> bytes:
    """One answer; that to HEAD has no body."""
    content = msgspec.json.encode({"error": status.phrase} if body is None else body) + b"\n"
    allow = "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        f"{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else content)
