"""Wake-ups: this process at once, the others by few notifications, and never an error for the publisher."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from postbus.errors import StoreUnavailableError
from postbus.stores.postgres.answers import Stored
from postbus.stores.postgres.appending import Appending
from postbus.stores.postgres.channels import channel_name
from postbus.stores.postgres.database import Database
from postbus.stores.postgres.wake_ups import NotifyMode, WakeUps
from tests.contracts.steps import make_draft
from tests.postgres.binaries import find_version
from tests.postgres.server import Server
from tests.postgres.steps import ask
from tests.stores.postgres_steps import end_session, eventually, listening

_INSERT = "INSERT INTO postbus.events (id, event_type) VALUES ($1, 'a') RETURNING global_sequence"


class Bus:
    """The wake-ups of one bus, and how often its one watcher was woken."""

    def __init__(self, database: Database, wake_ups: WakeUps) -> None:
        self.database = database
        self.wake_ups = wake_ups
        self.woken_count = 0

    def wake(self) -> None:
        """What a subscriber would be woken by."""
        self.woken_count += 1


@asynccontextmanager
async def bus_on(target: Any, mode: NotifyMode = "after_commit", **options: Any) -> AsyncIterator[Bus]:
    """A bus with one watcher."""
    database = Database(target, **options)
    wake_ups = WakeUps(database, mode)
    bus = Bus(database, wake_ups)
    wake_ups.watch(bus.wake)
    await database.open()
    try:
        yield bus
    finally:
        await wake_ups.close()
        await database.close()


async def test_what_one_bus_announces_wakes_the_others(postgres_dsn: str) -> None:
    """Each time; the head that the announcing one knows only rises."""
    async with bus_on(postgres_dsn) as one, bus_on(postgres_dsn) as other:
        one.wake_ups.announce(7)
        await eventually(lambda: other.woken_count == 1)
        # One that was committed later than a higher one.
        one.wake_ups.announce(5)
        await eventually(lambda: other.woken_count == 2)

        assert one.wake_ups.known_head == 7


@pytest.mark.parametrize("schema", ["it's", "back\\slash", "{number}", "{channel}"])
async def test_the_schema_may_have_any_name(postgres_dsn: str, schema: str) -> None:
    """Its channel is heard."""
    async with bus_on(postgres_dsn, schema=schema) as one, bus_on(postgres_dsn, schema=schema) as other:
        one.wake_ups.announce(7)
        await eventually(lambda: other.woken_count == 1)


async def test_a_notification_is_one_message(postgres_dsn: str) -> None:
    """Nothing is prepared for it: one that stood still in between would keep its locks for ever."""
    async with bus_on(postgres_dsn) as bus:
        bus.wake_ups.announce(7)
        await eventually(lambda: bus.wake_ups._sender is None)
        prepared = await bus.database.session.run(
            lambda session: session.fetchval(
                "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%synchronous_commit%'"
                " AND statement NOT LIKE '%pg_prepared_statements%'"
            )
        )

    assert prepared == 0


async def test_a_notified_number_is_not_believed(postgres_dsn: str) -> None:
    """Anybody may notify of any number: it wakes, and who is woken looks for itself."""
    async with bus_on(postgres_dsn) as bus:
        await ask(postgres_dsn, "SELECT pg_notify($1, '3000000000')", bus.database.channel)
        await eventually(lambda: bus.woken_count == 1)

        assert bus.wake_ups.known_head == 0


async def test_its_own_watchers_are_woken_at_once_and_once(postgres_dsn: str) -> None:
    """Not by way of the server, and not again when the notification comes back."""
    async with bus_on(postgres_dsn) as bus, listening(postgres_dsn, bus.database.channel) as outside:
        bus.wake_ups.announce(7)
        bus.wake_ups.announce(8)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        at_once = bus.woken_count
        await eventually(lambda: "8" in outside.heard)
        # What was sent before has arrived when this has.
        await ask(postgres_dsn, "SELECT pg_notify($1, '9')", bus.database.channel)
        await eventually(lambda: bus.woken_count == 2)

        assert at_once == 1
        assert bus.woken_count == 2


@pytest.mark.parametrize("is_heard_first", [True, False])
async def test_of_what_its_own_statement_notified_its_watchers_hear_once(
    postgres_dsn: str, is_heard_first: bool
) -> None:
    """Whichever comes first, the notification or the answer to the statement."""
    async with bus_on(postgres_dsn) as bus:
        channel = bus.wake_ups.channel_of_next
        assert channel == bus.database.channel
        if not is_heard_first:
            bus.wake_ups.note_notified(7)
        await ask(postgres_dsn, "SELECT pg_notify($1, '7')", channel)
        # What was sent before has arrived when this has.
        await ask(postgres_dsn, "SELECT pg_notify($1, '9')", channel)
        await eventually(lambda: bus.woken_count == 2)
        if is_heard_first:
            bus.wake_ups.note_notified(7)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert (bus.woken_count, bus.wake_ups.known_head) == (2, 7)


async def test_in_a_flood_no_statement_notifies_by_itself(postgres_dsn: str) -> None:
    """Nor where nobody or the trigger is to notify."""
    async with bus_on(postgres_dsn, "off") as silent, bus_on(postgres_dsn, "trigger") as triggered:
        assert (silent.wake_ups.channel_of_next, triggered.wake_ups.channel_of_next) == (None, None)
    async with bus_on(postgres_dsn) as bus:
        await Flood([bus]).until_it_is_seen()

        assert bus.wake_ups.channel_of_next is None


async def test_what_is_committed_beside_a_statement_that_notifies_is_told_as_well(postgres_dsn: str) -> None:
    """A flood may begin between notification and answer: what others commit then comes too late for it."""
    async with listening(postgres_dsn, channel_name("postbus")) as outside, bus_on(postgres_dsn) as bus:
        flood = Flood([bus])
        await flood.until_it_is_seen()
        while bus.wake_ups._owed is None:
            flood.announce(asyncio.get_running_loop().time())
        bus.wake_ups.note_notified(flood.last + 1)
        await eventually(lambda: str(flood.last) in outside.heard)


async def test_a_thousand_announcements_make_few_notifications(postgres_dsn: str) -> None:
    """The newest number wins; it is a number and nothing else."""
    async with bus_on(postgres_dsn) as bus, listening(postgres_dsn, bus.database.channel) as outside:
        for sequence in range(1, 1001):
            bus.wake_ups.announce(sequence)
            if sequence % 10 == 0:
                await asyncio.sleep(0)
        await eventually(lambda: "1000" in outside.heard)

    assert len(outside.heard) < 50
    assert all(payload.isdecimal() for payload in outside.heard)
    assert outside.heard == sorted(outside.heard, key=int)


async def test_publishers_one_after_the_other_share_notifications(postgres_dsn: str) -> None:
    """At most one each millisecond: it costs as much as a small append."""
    loop = asyncio.get_running_loop()
    async with bus_on(postgres_dsn) as bus, listening(postgres_dsn, bus.database.channel) as outside:
        began_at = loop.time()
        for sequence in range(1, 501):
            bus.wake_ups.announce(sequence)
            await bus.database.fetch("SELECT 1")
        await eventually(lambda: "500" in outside.heard)
        seconds = loop.time() - began_at

    assert len(outside.heard) <= seconds / 0.001 + 1


async def test_in_a_flood_notifications_are_fewer(postgres_dsn: str) -> None:
    """So many events share one that it does not count any more."""
    async with bus_on(postgres_dsn) as bus, listening(postgres_dsn, bus.database.channel) as outside:
        flood = Flood([bus])
        await flood.until_it_is_seen()
        await eventually(lambda: str(flood.last) in outside.heard)
        heard_before, told_before = len(outside.heard), flood.last
        await flood.go_on(0.4)
        await eventually(lambda: str(flood.last) in outside.heard)

    heard_count = len(outside.heard) - heard_before
    assert heard_count <= flood.step_count + 2 * flood.pause_count + 5
    assert heard_count <= (flood.last - told_before) / 4 + 2 * flood.pause_count + 5


async def test_buses_in_a_flood_share_the_notifications(postgres_dsn: str) -> None:
    """As many of them as there may be, together they send no more than one would, and all tell of the end."""
    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(bus_on(postgres_dsn)) for _ in range(8)]
        outside = await stack.enter_async_context(listening(postgres_dsn, buses[0].database.channel))
        flood = Flood(buses)
        await flood.until_it_is_seen()
        await eventually(lambda: str(flood.last) in outside.heard)
        heard_before = len(outside.heard)
        await flood.go_on(0.4)
        await eventually(lambda: str(flood.last) in outside.heard)
        await eventually(lambda: all(bus.wake_ups._owed is None for bus in buses))

    # The others' numbers may all be between the steps: they tell of themselves after four times as many.
    steps = flood.step_count * (1 + 1 / 4)
    assert len(outside.heard) - heard_before <= steps + 2 * flood.pause_count + 5 + 2 * len(buses)


async def test_what_waits_for_others_to_tell_of_it_is_sent_at_the_close(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last events of a flood need not wait for a poll when their bus goes."""
    async with listening(postgres_dsn, channel_name("postbus")) as outside:
        async with bus_on(postgres_dsn) as bus:
            flood = Flood([bus])
            await flood.until_it_is_seen()
            monkeypatch.setattr("postbus.stores.postgres.thinning._STRETCH", 60.0)
            monkeypatch.setattr("postbus.stores.postgres.thinning._LONGEST_DEBT", 60.0)
            while bus.wake_ups._owed is None:
                flood.announce(asyncio.get_running_loop().time())
            was_told = str(flood.last) in outside.heard
        await eventually(lambda: str(flood.last) in outside.heard)

    assert not was_told


class Flood:
    """Buses that announce numbers in turn, as quickly as the event loop turns."""

    def __init__(self, buses: Sequence[Bus]) -> None:
        self._buses = buses
        self._announced_at = [0.0] * len(buses)
        self.last = 0
        # How often one of them came so late, on a busy machine, that it was no flood to it.
        self.pause_count = 0
        # How many steps the numbers make: not of the seconds, because a busy machine's flood comes in surges.
        self.step_count = 0.0

    async def go_on(self, seconds: float) -> None:
        """Count the pauses and the steps from here on."""
        loop = asyncio.get_running_loop()
        end_at, self.pause_count, self.step_count = loop.time() + seconds, 0, 0.0
        while loop.time() < end_at:
            self.announce(loop.time())
            await asyncio.sleep(0)

    async def until_it_is_seen(self) -> None:
        """Return when each of them knows that it is a flood."""
        while any(bus.wake_ups._thinning.step == 1 for bus in self._buses):
            await self.go_on(0.02)

    def announce(self, now: float) -> None:
        """The next number, by the next of them."""
        self.last += 1
        who = self.last % len(self._buses)
        self.pause_count += now - self._announced_at[who] >= 0.02
        self._announced_at[who] = now
        self._buses[who].wake_ups.announce(self.last)
        self.step_count += 1 / self._buses[who].wake_ups._thinning.step


async def test_switched_off_nothing_is_sent(postgres_dsn: str) -> None:
    """The own watchers are woken all the same, and others can be heard."""
    async with bus_on(postgres_dsn, "off") as bus, listening(postgres_dsn, bus.database.channel) as outside:
        bus.wake_ups.announce(7)
        await eventually(lambda: bus.woken_count == 1)
        await ask(postgres_dsn, "SELECT pg_notify($1, '9')", bus.database.channel)
        await eventually(lambda: bus.woken_count == 2)

    assert outside.heard == ["9"]


async def test_the_trigger_tells_of_every_writer(postgres_dsn: str) -> None:
    """Whoever inserts, at commit; this bus sends nothing beside it."""
    async with (
        bus_on(postgres_dsn, "trigger") as bus,
        listening(postgres_dsn, bus.database.channel) as outside,
    ):
        sequence = await ask(postgres_dsn, _INSERT, "one")
        assert isinstance(sequence, int)
        bus.wake_ups.announce(sequence)
        bus.wake_ups.watch_foreign([sequence])
        await eventually(lambda: bus.wake_ups.known_head == sequence)
        await ask(postgres_dsn, _INSERT, "two")
        await eventually(lambda: len(outside.heard) == 2)

        assert outside.heard == [str(sequence), str(sequence + 1)]
        assert bus.woken_count >= 2


async def test_events_of_a_callers_transaction_are_announced_after_its_commit(postgres_dsn: str) -> None:
    """Not before: who looked then would find nothing. And not at all if it is rolled back."""
    async with bus_on(postgres_dsn) as bus, bus_on(postgres_dsn) as other:
        caller = await asyncpg.connect(postgres_dsn)
        rolled_back = caller.transaction()
        await rolled_back.start()
        bus.wake_ups.watch_foreign([await caller.fetchval(_INSERT, "never")])
        await rolled_back.rollback()
        transaction = caller.transaction()
        await transaction.start()
        sequence = await caller.fetchval(_INSERT, "mine")
        bus.wake_ups.watch_foreign([sequence])
        await asyncio.sleep(0.1)
        before = bus.woken_count, other.woken_count
        await transaction.commit()
        await caller.close()
        await eventually(lambda: other.woken_count == 1)

        assert before == (0, 0)
        assert (bus.woken_count, bus.wake_ups.known_head) == (1, sequence)


async def test_numbers_that_never_become_visible_are_given_up(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks for them for ever."""
    monkeypatch.setattr("postbus.stores.postgres.wake_ups._GIVEN_UP_AFTER", 0.1)
    async with bus_on(postgres_dsn) as bus:
        bus.wake_ups.watch_foreign([1, 2, 3])
        await eventually(lambda: bus.wake_ups._looker is None)

        assert bus.woken_count == 0


async def test_watchers_are_woken_after_the_session_was_replaced(postgres_dsn: str) -> None:
    """A notification may have been missed meanwhile."""
    async with bus_on(postgres_dsn) as bus:
        await end_session(postgres_dsn, bus.database)
        await eventually(lambda: bus.woken_count == 1)


async def test_a_number_sent_while_the_session_was_down_is_not_taken_for_an_echo_later(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own notification did not come back; the same number from another process has to wake.

    It was heard by the others: the pool has connections too.
    """
    monkeypatch.setattr("postbus.stores.postgres.session._SHORTEST_WAIT", 0.5)
    async with bus_on(postgres_dsn) as bus, listening(postgres_dsn, bus.database.channel) as outside:
        await end_session(postgres_dsn, bus.database)
        bus.wake_ups.announce(7)
        await eventually(lambda: bus.wake_ups._sender is None)
        await eventually(lambda: outside.heard == ["7"])
        was_up = bus.database.session.is_up
        await eventually(lambda: bus.woken_count == 2)
        await ask(postgres_dsn, "SELECT pg_notify($1, '7')", bus.database.channel)
        await eventually(lambda: bus.woken_count == 3)

    assert not was_up


async def test_a_notification_waits_for_no_connection_of_the_pool(postgres_dsn: str) -> None:
    """All of them may be with publishers and handlers."""
    async with (
        bus_on(postgres_dsn) as bus,
        listening(postgres_dsn, bus.database.channel) as outside,
        AsyncExitStack() as stack,
    ):
        for _ in range(5):
            await stack.enter_async_context(bus.database.connection())
        bus.wake_ups.announce(7)
        await eventually(lambda: outside.heard == ["7"])


async def test_a_lost_answer_to_a_notification_stops_no_later_one(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the notification has come back by then."""
    async with bus_on(postgres_dsn) as bus, listening(postgres_dsn, bus.database.channel) as outside:
        execute = bus.database.session.execute

        async def lose_answer(query: str, *args: object) -> None:
            monkeypatch.undo()
            await execute(query, *args)
            await eventually(lambda: not bus.wake_ups._echoes)
            bus.wake_ups.announce(8)
            raise StoreUnavailableError("the answer got lost")

        monkeypatch.setattr(bus.database.session, "execute", lose_answer)
        bus.wake_ups.announce(7)
        await eventually(lambda: outside.heard == ["7", "8"])


async def test_who_does_not_watch_any_more_is_not_woken(postgres_dsn: str) -> None:
    """To stop twice is allowed."""
    async with bus_on(postgres_dsn) as bus:
        bus.wake_ups.unwatch(bus.wake)
        bus.wake_ups.unwatch(bus.wake)
        bus.wake_ups.announce(7)
        await asyncio.sleep(0.01)

        assert bus.woken_count == 0
        assert bus.wake_ups.known_head == 7


async def test_a_server_that_is_gone_is_no_error_for_who_announces(
    own_postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and closing is quick."""
    async with bus_on(own_postgres.dsn()) as bus:
        own_postgres.kill()
        with caplog.at_level(logging.WARNING, "postbus"):
            for sequence in range(1, 6):
                bus.wake_ups.announce(sequence)
                await eventually(lambda: bus.wake_ups._sender is None)
        began_at = asyncio.get_running_loop().time()
    seconds = asyncio.get_running_loop().time() - began_at

    assert caplog.text.count("can't be notified") == 1
    assert seconds < 3


async def test_a_full_queue_of_notifications_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who listens and never reads lets the server's queue run full: others only have to poll.

    When that one is gone, notifications go through again, which the server does not see to by itself.
    """
    with Server(find_version(18), settings={"max_notify_queue_pages": 64}) as server:
        dsn = server.dsn()
        async with bus_on(dsn) as bus:
            sleeper = await asyncpg.connect(dsn)
            await sleeper.execute("LISTEN elsewhere")
            await sleeper.execute("BEGIN")
            with pytest.raises(asyncpg.PostgresError, match="too many notifications"):
                await fill_queue(dsn)
            appending, channels = Appending(bus.database, bus.wake_ups), [bus.wake_ups.channel_of_next]
            with caplog.at_level(logging.WARNING, "postbus"):
                for number in (1, 2):
                    # The first notifies by its statement, the second by one of its own: in vain.
                    assert await appending.append([make_draft()]) == [Stored(number, None)]
                    await eventually(lambda: bus.wake_ups._sender is None)
                    channels.append(bus.wake_ups.channel_of_next)
            await sleeper.close()
            async with listening(dsn, bus.database.channel) as outside:
                await eventually_through(bus, outside.heard)

            assert bus.database.session.is_up
            assert [*channels, bus.wake_ups.channel_of_next] == [
                bus.database.channel,
                None,
                None,
                channels[0],
            ]
            assert await ask(dsn, "SELECT count(*) FROM postbus.events") == 2
    assert caplog.text.count("can't be notified") == 1
    assert "NOTIFY queue" in caplog.text
    assert "was lost" not in caplog.text


async def fill_queue(dsn: str) -> None:
    """Notify until the server refuses."""
    connection = await asyncpg.connect(dsn)
    try:
        for number in range(10_000):
            await connection.execute("SELECT pg_notify('elsewhere', $1)", f"{number}".ljust(7900, "x"))
    finally:
        await connection.close()


async def eventually_through(bus: Bus, heard: list[str]) -> None:
    """Announce until it comes through."""
    async with asyncio.timeout(10):
        while True:
            bus.wake_ups.announce(9)
            if "9" in heard:
                return
            await asyncio.sleep(0.05)
