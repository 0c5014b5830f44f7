"""The health endpoint: what it answers, and what it puts up with."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postbus.errors import InvalidConfigError
from postbus.ops.cli.worker.health import Address, HealthServer, parse_address
from tests.delivery.steps import soon
from tests.end_to_end.processes import wait_until
from tests.ops.workers import APP, Worker, journal, publish, wait_for_journal
from tests.postgres.server import Server


@dataclass
class Mood:
    """A worker that is as the test wants it."""

    is_started: bool = True
    is_ready: bool = True
    is_live: bool = True

    def describe(self) -> dict[str, object]:
        return {"is_ready": self.is_ready}


@pytest.fixture
def mood() -> Mood:
    return Mood()


@pytest.fixture
async def port(mood: Mood) -> AsyncIterator[int]:
    async with HealthServer(mood).listen(Address("127.0.0.1", 0)) as address:
        yield address.port


async def exchange(port: int, request: bytes) -> tuple[str, dict[str, str], bytes]:
    """The first line, the headers and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = await soon(reader.read())
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


async def ask(port: int, method: str, target: str) -> tuple[str, dict[str, str], bytes]:
    return await exchange(port, f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


class TestAnswers:
    @pytest.mark.parametrize("path", ["/ready", "/live", "/ready?verbose=1"])
    async def test_good_health_is_200(self, port: int, path: str) -> None:
        first, headers, body = await ask(port, "GET", path)

        assert first == "HTTP/1.1 200 OK"
        assert headers["Content-Type"] == "application/json"
        assert headers["Content-Length"] == str(len(body))
        assert headers["Connection"] == "close"
        assert set(msgspec.json.decode(body).values()) == {True}

    async def test_bad_health_is_503_with_the_same_json(self, port: int, mood: Mood) -> None:
        mood.is_ready = mood.is_live = False
        answers = [await ask(port, "GET", path) for path in ("/ready", "/live")]

        assert {first for first, _, _ in answers} == {"HTTP/1.1 503 Service Unavailable"}
        assert [msgspec.json.decode(body) for *_, body in answers] == [
            {"is_ready": False},
            {"is_live": False},
        ]

    async def test_ready_and_live_are_two_things(self, port: int, mood: Mood) -> None:
        mood.is_ready = False

        assert (await ask(port, "GET", "/live"))[0] == "HTTP/1.1 200 OK"

    @pytest.mark.parametrize("path", ["/ready", "/live", "/nix"])
    async def test_head_is_get_without_the_body(self, port: int, path: str) -> None:
        first, headers, body = await ask(port, "HEAD", path)
        of_get = await ask(port, "GET", path)

        assert (first, headers) == of_get[:2]
        assert body == b""

    @pytest.mark.parametrize("path", ["/", "/ready/", "/nix", "//ready"])
    async def test_another_path_is_404(self, port: int, path: str) -> None:
        assert (await ask(port, "GET", path))[0] == "HTTP/1.1 404 Not Found"

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
    async def test_another_method_is_405_and_told_which_are_allowed(self, port: int, method: str) -> None:
        first, headers, _ = await ask(port, method, "/ready")

        assert (first, headers["Allow"]) == ("HTTP/1.1 405 Method Not Allowed", "GET, HEAD")

    async def test_a_body_is_read_and_not_answered_with_a_reset(self, port: int) -> None:
        request = b"POST /ready HTTP/1.1\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500_000

        assert (await exchange(port, request))[0] == "HTTP/1.1 405 Method Not Allowed"


class TestHostility:
    @pytest.mark.parametrize(
        "request_line",
        [b"", b"GET", b"GET /ready", b"GET /ready HTTP/2", b"GET  /ready HTTP/1.1", b"\xff\x00 /ready \xfe",
         b"GET http://x/ready HTTP/1.1", b" / HTTP/1.1"],
    )  # fmt: skip
    async def test_what_is_no_request_is_400(self, port: int, request_line: bytes) -> None:
        assert (await exchange(port, request_line + b"\r\n\r\n"))[0] == "HTTP/1.1 400 Bad Request"

    async def test_a_huge_head_is_431(self, port: int) -> None:
        request = b"GET /ready HTTP/1.1\r\nX: " + b"x" * 100_000

        assert (await exchange(port, request))[0].startswith("HTTP/1.1 431 ")

    async def test_an_endless_request_is_cut_off(self, port: int) -> None:
        """Whoever sends without end is not read without end."""
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /ready HTTP/1.1\r\n\r\n")

        async def send() -> None:
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()

        with pytest.raises(ConnectionError):
            await soon(send())

    async def test_those_who_say_nothing_keep_nobody_from_asking(self, port: int) -> None:
        """Though there are more of them than there are places."""
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        try:
            assert (await ask(port, "GET", "/ready"))[0] == "HTTP/1.1 200 OK"
        finally:
            for _, writer in idle:
                writer.close()

    async def test_one_who_says_too_little_is_cut_off(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ready HTTP/1.1\r\n")
        try:
            assert await soon(reader.read()) == b""
        except ConnectionResetError:
            pass
        finally:
            writer.close()

    async def test_a_connection_that_is_closed_at_once_hurts_nobody(self, port: int) -> None:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.abort()

        assert (await ask(port, "GET", "/live"))[0] == "HTTP/1.1 200 OK"


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("8080", "127.0.0.1", 8080),
            (":8080", "127.0.0.1", 8080),
            ("0.0.0.0:80", "0.0.0.0", 80),
            ("[::1]:80", "::1", 80),
            ("localhost:0", "localhost", 0),
        ],
    )
    def test_a_host_may_be_left_out(self, text: str, host: str, port: int) -> None:
        assert parse_address(text) == Address(host, port)

    @pytest.mark.parametrize("text", ["", "localhost", "x:", "x:-1", "x:65536", "x:٣", "x:8080/"])
    def test_a_port_may_not(self, text: str) -> None:
        with pytest.raises(ValueError, match="has no port; expected PORT or HOST:PORT"):
            parse_address(text)

    async def test_one_that_is_taken_is_refused(self, port: int, mood: Mood) -> None:
        with pytest.raises(InvalidConfigError, match=f"--health is '127.0.0.1:{port}'; expected an address"):
            async with HealthServer(mood).listen(Address("127.0.0.1", port)):
                pass


def subscription_in(worker: Worker) -> dict[str, Any]:
    """What the worker says of its only one."""
    [subscription] = worker.ask("/ready")[1]["subscriptions"]
    assert isinstance(subscription, dict)
    return subscription


class TestWorker:
    def test_it_is_ready_from_the_start_to_the_shutdown(self, tmp_path: Path) -> None:
        file, hold = tmp_path / "events.db", tmp_path / "hold"
        hold.touch()
        app = f"{APP}:Factories.make_slowly"
        with Worker("--health", "0", folder=tmp_path, target=file, app=app) as worker:
            wait_for_journal(tmp_path, ["begin to make"])
            status, answer = worker.ask("/ready")
            assert (status, answer["is_ready"], answer["phase"]) == (503, False, "starting")
            assert worker.ask("/live") == (200, {"is_live": True})

            hold.unlink()
            worker.wait_until_ready()
            wait_until(lambda: worker.ask("/ready")[0] == 200, "it is ready")
            hold.touch()
            publish(file, 1)
            wait_for_journal(tmp_path, ["mail begin 1"])
            subscription = subscription_in(worker)
            assert subscription == {"id": "mail", "state": "live", "reason": None, "checkpoint": 0, "lag": 1}

            worker.process.terminate()
            wait_until(lambda: worker.ask("/ready")[0] == 503, "the shutdown began")
            assert worker.ask("/ready")[1]["phase"] == "stopping"
            hold.unlink()
            assert worker.wait() == 0
        assert journal(tmp_path)[-1] == "mail end 1"

    def test_a_subscriber_that_fails_makes_it_not_ready_and_says_why(
        self, tmp_path: Path, own_postgres: Server
    ) -> None:
        """And it is ready again when the server is."""
        with Worker("--health", "0", folder=tmp_path, target=own_postgres.dsn()) as worker:
            worker.wait_until_ready()
            wait_until(lambda: worker.ask("/ready")[0] == 200, "it is ready")
            own_postgres.kill()
            wait_until(lambda: subscription_in(worker)["state"] == "failed", "it has failed")

            status, answer = worker.ask("/ready")
            assert (status, answer["phase"], answer["is_ready"]) == (503, "started", False)
            assert re.match(r"\w+Error: ", subscription_in(worker)["reason"])
            assert worker.ask("/live")[0] == 200
            own_postgres.start()
            wait_until(lambda: worker.ask("/ready")[0] == 200, "it is ready again")
            assert worker.end() == 0

    def test_a_port_that_is_taken_is_exit_code_1(self, tmp_path: Path, port: int) -> None:
        with Worker("--health", port, folder=tmp_path, target=tmp_path / "events.db") as worker:
            assert worker.wait() == 1
            assert f"--health is '127.0.0.1:{port}'" in worker.log()
