"""What a dead letter tells of its errors: the words that somebody needs who is to mend it."""

import asyncio
import itertools
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postbus import Event, EventBus, ReliableDeliveryConfig, RetryPolicy
from postbus.delivery.error_stories import describe_error
from postbus.testing import ManualClock
from tests.delivery.steps import MakeBus, soon, until


async def _send_mail() -> None:
    raise ConnectionError("the mail server does not answer")


async def _in_a_group(_: Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_send_mail())


STORY = (
    "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception) "
    "[ConnectionError: the mail server does not answer]"
)


async def test_a_handler_that_fails_within_a_task_group_says_why(make_bus: MakeBus) -> None:
    """The words of the group alone are the same for every failure."""
    bus = make_bus(retry=RetryPolicy(max_retries=0))
    bus.subscribe("order.placed", _in_a_group)
    dead = await bus.dlq.get(await soon(bus.publish("order.placed")))

    assert dead.errors == [STORY]


async def test_so_does_a_durable_subscriber() -> None:
    """Its dead letters are read by the same people."""
    async with EventBus("memory:", config=ReliableDeliveryConfig(max_retries=0)) as bus:
        bus.subscribe("order.placed", _in_a_group, id="mail")
        await bus.publish("order.placed")
        await soon(bus.idle())
        [dead] = (await bus.dlq.list()).events

    assert dead.errors == [STORY]


class _Shy(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class _Odd(ExceptionGroup[Exception]):
    """A group that has its members from elsewhere."""

    members: Any = ()

    @property
    def exceptions(self) -> Any:
        if isinstance(self.members, Exception):
            raise self.members
        return self.members


def _odd(members: object) -> _Odd:
    group = _Odd("odd", [ValueError()])
    group.members = members
    return group


def _endless() -> Iterator[Exception]:
    return (ValueError(number) for number in itertools.count())


def _nested(depth: int) -> Exception:
    error: Exception = KeyError("deep inside")
    for _ in range(depth):
        error = ExceptionGroup("group", [error])
    return error


def _circle() -> Exception:
    group = _odd(())
    group.members = [group]
    return group


def _in_a_crowd() -> Exception:
    return ExceptionGroup("group", list(itertools.islice(_endless(), 2_000)))


def _noted(note: str) -> Exception:
    error = ValueError("odd")
    error.add_note(note)
    return error


class TestGroups:
    def test_all_members_are_told_those_of_groups_within_as_well(self) -> None:
        """In their order, and where each belongs can be seen."""
        inner = ExceptionGroup("database", [TimeoutError(), KeyError("id")])
        group = BaseExceptionGroup("everything", [ValueError("1"), inner, SystemExit(2)])

        assert describe_error(group) == (
            "BaseExceptionGroup: everything (3 sub-exceptions) [ValueError: 1; "
            "ExceptionGroup: database (2 sub-exceptions) [TimeoutError; KeyError: 'id']; SystemExit: 2]"
        )

    def test_it_is_one_line(self) -> None:
        """Of some libraries each error has several."""
        group = ExceptionGroup("two\nlines", [ValueError("first\n  second\r\n"), KeyError()])

        assert describe_error(group) == (
            "ExceptionGroup: two lines (2 sub-exceptions) [ValueError: first second; KeyError]"
        )

    def test_one_long_member_does_not_hide_the_others(self) -> None:
        """Of each the beginning is told."""
        story = describe_error(ExceptionGroup("group", [ValueError("x" * 1_000_000), KeyError("why")]))

        assert "… (1000012 characters); KeyError: 'why'" in story
        assert len(story) < 5_000

    def test_a_member_that_can_not_be_shown_hides_no_other(self) -> None:
        """It is named at least."""
        story = describe_error(ExceptionGroup("group", [_Shy(), KeyError("why")]))

        assert "[_Shy: (its message can't be shown: __str__ raised); KeyError: 'why']" in story

    @pytest.mark.parametrize(
        "group",
        [
            _nested(10_000),
            _circle(),
            _odd(_endless()),
            ExceptionGroup("group", list(itertools.islice(_endless(), 100_000))),
        ],
        ids=["deep", "a circle", "endless", "many"],
    )
    def test_it_ends_at_the_limit_and_says_that_there_is_more(self, group: Exception) -> None:
        """However deep or long it is."""
        story = describe_error(group)

        assert len(story) < 11_000
        assert story.endswith("… (and more)")

    @pytest.mark.parametrize("members", [RuntimeError("no"), None, 7, "ab", [None]], ids=repr)
    def test_a_group_without_usable_members_is_told_without_them(self, members: object) -> None:
        """Somebody has written it so."""
        assert describe_error(_odd(members)).startswith("_Odd: odd (1 sub-exception)")


async def _pass_on(_: Event) -> None:
    await _send_mail()


def _pass_on_in_a_transaction(_: Event, __: object) -> None:
    raise ConnectionError("the mail server does not answer")


def tracebacks_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The functions of this file on the way to each error that was logged, and its type."""
    stories = []
    for record in caplog.records:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            continue
        frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
        names = [frame.name for frame in frames if frame.filename == __file__]
        stories.append(" > ".join([*names, type(error).__name__]))
    return stories


class TestLog:
    """Where in the handler it went wrong: nobody finds that out from the words of an error."""

    async def test_each_failed_attempt_of_the_handlers(
        self, make_bus: MakeBus, caplog: pytest.LogCaptureFixture
    ) -> None:
        bus = make_bus(retry=RetryPolicy(max_retries=1, base_delay=0))
        bus.subscribe("order.placed", _pass_on)
        await soon(bus.publish("order.placed"))

        assert tracebacks_in(caplog) == ["_pass_on > _send_mail > ConnectionError"] * 2

    async def test_that_of_a_subscriber_and_the_retry_of_its_dead_letter(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with EventBus("memory:", config=ReliableDeliveryConfig(max_retries=0)) as bus:
            bus.subscribe("order.placed", _pass_on, id="mail")
            await bus.publish("order.placed")
            await soon(bus.idle())
            await bus.dlq.retry_all()
            await until(lambda: "retry of dead letter" in caplog.text)

        assert tracebacks_in(caplog) == ["_pass_on > _send_mail > ConnectionError"] * 2

    async def test_that_of_a_transactional_one_too(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its handler runs in another thread."""
        async with EventBus(tmp_path / "events.db", config=ReliableDeliveryConfig(max_retries=0)) as bus:
            bus.subscribe("order.placed", _pass_on_in_a_transaction, id="mail")
            await bus.publish("order.placed")
            await soon(bus.idle())
            await bus.dlq.retry_all()
            await until(lambda: "retry of dead letter" in caplog.text)

        assert tracebacks_in(caplog) == ["_pass_on_in_a_transaction > ConnectionError"] * 2

    @pytest.mark.parametrize("subscriber_id", [None, "mail"])
    async def test_of_a_timeout_what_the_handler_waited_for(
        self, subscriber_id: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        """That it took too long its owner knows; not where."""
        clock, has_begun = ManualClock(), asyncio.Event()

        async def hang(_: Event) -> None:
            has_begun.set()
            await asyncio.Event().wait()

        config = ReliableDeliveryConfig(max_retries=0)
        async with EventBus("memory:", config=config, retry=RetryPolicy(max_retries=0), clock=clock) as bus:
            bus.subscribe("order.placed", hang, id=subscriber_id, timeout=5)
            await bus.publish("order.placed", wait=False)
            await soon(has_begun.wait())
            await clock.advance(5)
            await until(lambda: "is a dead letter" in caplog.text)

        [story] = tracebacks_in(caplog)
        assert story.startswith("hang > ")

    @pytest.mark.parametrize(
        "error",
        [
            _nested(10_000),
            _circle(),
            _odd([ValueError()]),
            _in_a_crowd(),
            ValueError("\ud800"),
            _noted("\ud800"),
        ],
        ids=["deep", "a circle", "odd", "many", "surrogate", "surrogate in a note"],
    )
    @pytest.mark.parametrize("subscriber_id", [None, "mail"])
    async def test_a_traceback_that_can_not_be_shown_is_left_out(
        self, subscriber_id: str | None, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It would take gigabytes where groups are deeper than the stack, or no file would take it."""

        async def fail(_: Event) -> None:
            raise error

        config = ReliableDeliveryConfig(max_retries=0)
        async with EventBus("memory:", config=config, retry=RetryPolicy(max_retries=0)) as bus:
            bus.subscribe("order.placed", fail, id=subscriber_id)
            await bus.publish("order.placed")
            await soon(bus.idle())
            [dead] = (await bus.dlq.list()).events

        assert dead.errors == [describe_error(error)]
        assert "attempt 1 of 1 failed" in caplog.text
        assert tracebacks_in(caplog) == []
