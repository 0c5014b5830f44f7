"""Another instance takes over, however the active one ends: real processes, and a server that notices."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.children.instance import BEGAN
from tests.end_to_end.history import History
from tests.end_to_end.processes import wait_until
from tests.instances.steps import (
    AT_WORK,
    EFFECTS,
    ID,
    Instance,
    handled,
    outsider,
    rows,
    typical,
    wait_until_handled,
)
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server

HAND_OVER, AFTER_KILL = 0.2, 1.0
# The default, and how long the server bears silence then.
FAILOVER_TIMEOUT = 10.0
SILENCE = "8s"
ROUNDS = 5
BOOKS = "books"
CHANNEL = "postbus:postbus"
# How many of these processes wait for their clients to take what they send.
STUCK = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1::int[]) AND wait_event = 'ClientWrite'"


def instance(dsn: str, folder: Path, name: str) -> Instance:
    """With two subscribers, of which that of the books is held up in its transactions."""
    return Instance(
        dsn, folder, name, failover_timeout=FAILOVER_TIMEOUT, **{ID: "ok", BOOKS: "transactional"}
    )


def wait_until_processed(history: History, event_id: str) -> None:
    """By both subscribers of the standby."""
    for id in (ID, BOOKS):
        wait_until(
            lambda id=id: event_id in handled(history, "standby", id),  # type: ignore[misc]
            f"the standby has taken over {id}",
        )


def test_an_instance_that_shuts_down_hands_over_within_200_ms(
    postgres_dsn: str, tmp_path: Path, history: History
) -> None:
    """From the call of shutdown to the handler of the other, again and again to and fro; nothing twice."""
    with (
        Instance(postgres_dsn, tmp_path, "first", mail="ok") as active,
        Instance(postgres_dsn, tmp_path, "second", mail="ok") as standby,
    ):
        active.start(*AT_WORK)
        seconds, event_ids = [], active.ask("publish", count=20)
        for _ in range(ROUNDS):
            active.ask("caught_up", id=ID)
            standby.start("standby")
            before = len(handled(history, standby.name))
            shut_down_at = time.monotonic()
            leaving = active.begin("shutdown")
            while len(handled(history, standby.name)) == before:
                event_ids += standby.ask("publish")
            seconds.append(time.monotonic() - shut_down_at)
            active.answer(leaving)
            active, standby = standby, active
        active.ask("caught_up", id=ID)

    print("handed over after", seconds)
    assert typical(seconds) < HAND_OVER
    assert sorted(handled(history, "first") + handled(history, "second")) == sorted(event_ids)


@pytest.mark.parametrize("kind", ["slow", "transactional", "statement"])
async def test_a_killed_instance_is_replaced_within_a_second(
    postgres_dsn: str, tmp_path: Path, history: History, kind: str
) -> None:
    """In the middle of an event or of a transaction, even if the server is busy with it for 25 s."""
    await rows(postgres_dsn, EFFECTS)
    seconds = []
    with ExitStack() as stack:

        def start(number: int) -> Instance:
            instance = Instance(postgres_dsn, tmp_path, f"{number}", mail=kind)
            stack.enter_context(instance).ask("start")
            return instance

        active = start(0)
        event_ids = active.ask("publish", count=ROUNDS)
        for number in range(1, ROUNDS):
            wait_until(
                lambda name=active.name: history.of(f"{BEGAN}-{ID}-by-{name}"),  # type: ignore[misc]
                "the active one is at an event",
            )
            standby = start(number)
            standby.wait_for_state("standby")
            active.process.kill()
            killed_at = time.monotonic()
            wait_until(
                lambda name=standby.name: history.of(f"{BEGAN}-{ID}-by-{name}"),  # type: ignore[misc]
                "the standby is at an event",
            )
            seconds.append(time.monotonic() - killed_at)
            active = standby
        active.ask("release")
        if kind != "statement":
            active.ask("caught_up", id=ID)

    print("replaced after", seconds)
    assert typical(seconds) < AFTER_KILL
    if kind != "statement":
        assert handled(history, active.name) == event_ids


async def test_a_host_that_vanishes_is_replaced_within_the_failover_timeout(
    own_postgres: Server, tmp_path: Path, history: History
) -> None:
    """It closes nothing: the server ends its session, because it is silent; in a transaction too."""
    dsn = own_postgres.dsn()
    await rows(dsn, EFFECTS)
    async with Proxy(own_postgres) as network:
        with (
            instance(network.dsn("postgres"), tmp_path, "vanishing") as vanishing,
            instance(dsn, tmp_path, "standby") as standby,
        ):
            # Its network is in this process: it has to be asked from a thread.
            await asyncio.to_thread(vanishing.start, *AT_WORK)
            await asyncio.to_thread(standby.start, "standby")
            standby.ask("release")
            pid, silence = await asyncio.to_thread(vanishing.ask, "session")
            await asyncio.to_thread(vanishing.ask, "publish")
            await asyncio.to_thread(
                wait_until, lambda: history.of(f"{BEGAN}-{BOOKS}-by-vanishing"), "it is in a transaction"
            )
            network.swallow()
            vanished_at = time.monotonic()
            (event_id,) = standby.ask("publish")
            wait_until_processed(history, event_id)
            seconds = time.monotonic() - vanished_at
            left = await rows(dsn, "SELECT pid FROM pg_stat_activity WHERE pid = $1", pid)

    print("replaced after", seconds)
    assert silence == SILENCE
    assert not left
    assert (
        f"[{pid}] postgres FATAL:  terminating connection due to idle-session timeout" in own_postgres.log()
    )
    assert seconds < FAILOVER_TIMEOUT


async def test_an_instance_that_stands_still_is_replaced_within_the_failover_timeout(
    postgres_dsn: str, tmp_path: Path, history: History
) -> None:
    """In the middle of a transaction too, for which its handler would have 30 s."""
    await rows(postgres_dsn, EFFECTS)
    with (
        instance(postgres_dsn, tmp_path, "frozen") as frozen,
        instance(postgres_dsn, tmp_path, "standby") as standby,
    ):
        frozen.start(*AT_WORK)
        standby.start("standby")
        standby.ask("release")
        event_ids = frozen.ask("publish")
        wait_until(lambda: history.of(f"{BEGAN}-{BOOKS}-by-frozen"), "the first is in a transaction")
        frozen.stand_still()
        stopped_at = time.monotonic()
        event_ids += standby.ask("publish")
        wait_until_processed(history, event_ids[-1])
        seconds = time.monotonic() - stopped_at
        standby.ask("caught_up", id=BOOKS)

    print("replaced after", seconds)
    assert seconds < FAILOVER_TIMEOUT
    assert handled(history, "standby", BOOKS) == event_ids


async def test_an_instance_that_stands_still_is_replaced_although_the_server_waits_for_it_to_listen(
    own_postgres: Server, tmp_path: Path, history: History
) -> None:
    """A server that is stuck in sending notifications does not count the time; a stranger's session stays."""
    dsn = own_postgres.socket_dsn()
    with (
        Instance(dsn, tmp_path, "frozen", failover_timeout=FAILOVER_TIMEOUT, mail="ok") as frozen,
        Instance(dsn, tmp_path, "standby", failover_timeout=FAILOVER_TIMEOUT, mail="ok") as standby,
    ):
        frozen.start(*AT_WORK)
        standby.start("standby")
        pid, _ = frozen.ask("session")
        async with outsider(dsn) as stranger, outsider(dsn) as publisher:
            await stranger.add_listener(CHANNEL, lambda *_: None)
            stuck = [pid, stranger.get_server_pid()]
            stranger._transport.pause_reading()  # type: ignore[attr-defined]
            frozen.stand_still()
            stopped_at = time.monotonic()
            try:
                while await publisher.fetchval(STUCK, stuck) < len(stuck):
                    await publisher.execute("SELECT pg_notify($1, '1')", CHANNEL)
                standby.ask("publish")
                wait_until_handled(history, "standby", "the standby has taken over")
                seconds = time.monotonic() - stopped_at
                left = await publisher.fetchval(STUCK, stuck)
            finally:
                # It could not be closed.
                stranger.terminate()
        told = standby.has_said(f"its session (process {pid} of the server) is ended")
        frozen.go_on()
        frozen.wait_for_state("standby")

    print("replaced after", seconds)
    assert seconds < FAILOVER_TIMEOUT
    assert left == 1
    assert told
