"""A network between a client and PostgreSQL that fails when it is told to."""

import asyncio
import contextlib
import socket
import struct
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

from tests.postgres.existing import Postgres

Direction = Literal["to_server", "to_client"]

_ENCRYPTION_REQUESTS = (struct.pack("!II", 8, 80877103), struct.pack("!II", 8, 80877104))
_READY_FOR_QUERY = b"Z"


@dataclass(eq=False)
class _Link:
    """One client's connection through the proxy."""

    client: StreamWriter
    server: StreamWriter | None = None
    task: "asyncio.Task[None]" = field(init=False)
    # The text of each statement the client has prepared, by name.
    statements: dict[bytes, bytes] = field(default_factory=dict)
    # Given while the answer to a query gets lost, and set when all of it is.
    losing: asyncio.Event | None = None

    def reset(self) -> None:
        """Break it off on both sides, as a router does that has forgotten the connection."""
        for writer in filter(None, (self.client, self.server)):
            # Without lingering a close becomes a reset; a socket that is closed already takes no options.
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        self.task.cancel()

    async def close(self) -> None:
        """Close both sides, after all that has been written to them."""
        for writer in filter(None, (self.client, self.server)):
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def query_in(self, message: bytes) -> bytes:
        """The text of the query that *message* makes the server execute, or nothing."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return body
        if kind == b"P":
            name, text = body.split(b"\0", 2)[:2]
            self.statements[name] = text
        elif kind == b"B":
            return self.statements.get(body.split(b"\0", 2)[1], b"")
        return b""


@dataclass
class _Limit:
    """How many bytes still go in one direction before everything is cut."""

    left: int
    reached: asyncio.Event


class Proxy:
    """Forwards to *server* until it is told otherwise. An async context manager."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._links: set[_Link] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._limits: dict[Direction, _Limit] = {}
        self._lose: tuple[bytes, asyncio.Event] | None = None

    def dsn(self, database: str) -> str:
        """How to reach a database of the server through the proxy."""
        return self.through(self._server.dsn(database))

    def through(self, dsn: str) -> str:
        """The same database as *dsn*, through the proxy."""
        parts = urlsplit(dsn)
        user, at, _ = parts.netloc.rpartition("@")
        port = self._listener.sockets[0].getsockname()[1]
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{port}").geturl()

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._links)

    def cut(self) -> None:
        """Reset every connection now; new ones are let through."""
        for link in list(self._links):
            link.reset()

    def swallow(self) -> None:
        """Let nothing through in either direction, and close nothing: TCP half-open, for new clients too."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, what was held back first."""
        self._flowing.set()

    def cut_after(self, n_bytes: int, direction: Direction) -> asyncio.Event:
        """Forward that many more bytes of all clients together, then cut(); the event tells when."""
        limit = _Limit(n_bytes, asyncio.Event())
        self._limits[direction] = limit
        return limit.reached

    def cut_before_answer_of(self, text: bytes) -> asyncio.Event:
        """Let the next query with *text* be executed, then reset its connection instead of answering.

        It has been executed to its end when the event is set.
        """
        self._lose = (text, asyncio.Event())
        return self._lose[1]

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        tasks = [link.task for link in self._links]
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        # Not left to start_server(), which takes a task that was cancelled for an error.
        link.task = asyncio.create_task(self._serve(link, reader))

    async def _serve(self, link: _Link, reader: StreamReader) -> None:
        try:
            await self._flowing.wait()
            answers, link.server = await self._connect()
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump_to_server(link, reader, link.server))
                pumps.create_task(self._pump_to_client(link, answers))
        except* (OSError, IncompleteReadError):
            pass  # One side is gone, and so the other side goes.
        finally:
            self._links.discard(link)
            if link.losing is not None:
                link.losing.set()
            await link.close()

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        parts = urlsplit(self._server.dsn("postgres"))
        assert parts.hostname, f"{parts.geturl()} names no host: only TCP goes through the proxy"
        return await asyncio.open_connection(parts.hostname, parts.port or 5432)

    async def _pump_to_server(self, link: _Link, reader: StreamReader, server: StreamWriter) -> None:
        is_first = True
        while True:
            # The very first message is the only one without a letter in front.
            message = await _read_message(reader, head_size=4 if is_first else 5)
            await self._flowing.wait()
            if message in _ENCRYPTION_REQUESTS:
                # No: queries have to be readable here.
                link.client.write(b"N")
                continue
            is_first = False
            text = link.query_in(message)
            if self._lose is not None and self._lose[0] in text:
                link.losing, self._lose = self._lose[1], None
            await self._forward(message, server, "to_server")

    async def _pump_to_client(self, link: _Link, answers: StreamReader) -> None:
        while True:
            message = await _read_message(answers, head_size=5)
            await self._flowing.wait()
            if link.losing is None:
                await self._forward(message, link.client, "to_client")
            elif message.startswith(_READY_FOR_QUERY):
                link.losing.set()
                link.reset()

    async def _forward(self, message: bytes, writer: StreamWriter, direction: Direction) -> None:
        limit = self._limits.get(direction)
        if limit is not None:
            if limit.left <= len(message):
                del self._limits[direction]
                writer.write(message[: limit.left])
                self.cut()
                limit.reached.set()
                return
            limit.left -= len(message)
        writer.write(message)
        await writer.drain()


async def _read_message(reader: StreamReader, *, head_size: int) -> bytes:
    head = await reader.readexactly(head_size)
    return head + await reader.readexactly(int.from_bytes(head[-4:], "big") - 4)
