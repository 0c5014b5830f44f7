"""What a dead letter tells of its errors: the words that somebody needs who is to mend it."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from postbus import Event, EventBus, ReliableDeliveryConfig, RetryPolicy
from postbus.delivery.attempts import describe_error
from tests.delivery.steps import MakeBus, soon


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
