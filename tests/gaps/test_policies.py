"""What users may choose instead: the clock of the specification, and strict global order."""

import logging

import pytest

from tests.gaps.steps import ID, running, soon, writer, written


class TestTimeout:
    async def test_a_gap_is_given_up_after_gap_timeout_and_that_is_recorded(self, postgres_dsn: str) -> None:
        """The checkpoint passes a writer that is still at work, and every number is on record."""
        async with (
            running(postgres_dsn, gap_policy="timeout", gap_timeout=0.2) as (bus, [seen]),
            writer(postgres_dsn) as a,
            writer(postgres_dsn) as b,
        ):
            await a.run("BEGIN")
            gap = [await a.insert() for _ in range(2)]
            number = await b.insert()
            await soon(lambda: bus.subscription(ID).checkpoint == number)
            rows = await b.connection.fetch(
                "SELECT subscriber_id, first_sequence, last_sequence FROM postbus.event_bus_gap_timeouts"
            )
            await a.run("ROLLBACK")

        assert [tuple(row) for row in rows] == [(ID, gap[0], gap[1])]
        assert seen.numbers == [number]

    async def test_an_event_that_comes_after_all_is_reported_and_a_dead_letter(
        self, postgres_dsn: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Even then nothing is lost: it can be retried."""
        caplog.set_level(logging.ERROR, "postbus")
        async with (
            running(postgres_dsn, gap_policy="timeout", gap_timeout=0.2) as (bus, [seen]),
            writer(postgres_dsn) as a,
            writer(postgres_dsn) as b,
        ):
            await a.run("BEGIN")
            late = await a.insert()
            number = await b.insert()
            await soon(lambda: bus.subscription(ID).checkpoint == number)
            await a.run("COMMIT")
            await soon(lambda: "came too late" in caplog.text)
            page = await bus.dlq.list(subscriber_id=ID)

            assert [letter.global_sequence for letter in page.events] == [late]

            await bus.dlq.retry(page.events[0].dead_letter_id)
            await soon(lambda: seen.numbers == [number, late])

        assert caplog.text.count("came too late") == 1


class TestGlobalOrder:
    async def test_nothing_beyond_a_gap_is_delivered_before_it(self, postgres_dsn: str) -> None:
        """8 waits for 7."""
        async with (
            running(postgres_dsn, ordering="global") as (bus, [seen]),
            writer(postgres_dsn) as a,
            writer(postgres_dsn) as b,
        ):
            first = await b.insert()
            await a.run("BEGIN")
            gap = await a.insert()
            beyond = [await b.insert() for _ in range(3)]
            await soon(lambda: seen.numbers == [first])
            # Long enough for some looks, none of which may deliver anything.
            await b.run("SELECT pg_sleep(0.3)")

            assert seen.numbers == [first]

            await a.run("COMMIT")
            await soon(lambda: seen.numbers == [first, gap, *beyond])
            await soon(lambda: bus.subscription(ID).checkpoint == beyond[-1])

    async def test_a_dead_number_holds_nothing_up(self, postgres_dsn: str) -> None:
        """It is passed as soon as nobody can use it any more."""
        async with running(postgres_dsn, ordering="global") as (bus, [seen]), writer(postgres_dsn) as a:
            await a.run("BEGIN")
            await a.draw()
            await a.run("ROLLBACK")
            number = await a.insert()
            await soon(lambda: seen.numbers == [number] and bus.subscription(ID).checkpoint == number)

    async def test_a_gap_is_given_up_by_the_clock_if_both_are_chosen(self, postgres_dsn: str) -> None:
        """Then it delays, and is put on record."""
        async with (
            running(postgres_dsn, ordering="global", gap_policy="timeout", gap_timeout=0.2) as (_, [seen]),
            writer(postgres_dsn) as a,
            writer(postgres_dsn) as b,
        ):
            await a.run("BEGIN")
            gap = await a.insert()
            number = await b.insert()
            await soon(lambda: seen.numbers == [number])
            # The record is written together with the checkpoint that passes the gap.
            await written(postgres_dsn, number)
            count = await b.connection.fetchval(
                "SELECT count(*) FROM postbus.event_bus_gap_timeouts WHERE first_sequence = $1", gap
            )
            await a.run("ROLLBACK")

        assert count == 1
