"""Any order of calls: every store does what a dict would do, and loses nothing."""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from postbus.errors import DuplicateEventIdError, EventNotFoundError, NotADeadLetterError
from postbus.events import DeadLetterPage, Draft, Event, EventStatus, GlobalSequence
from postbus.policy.lifecycle import can_move
from postbus.testing import ManualClock
from tests.contracts.backends import Backend, on_embedded, open_store
from tests.contracts.steps import add, make_draft

T = TypeVar("T")

_PENDING, _PROCESSING, _DONE, _DLQ = EventStatus
_TYPES = ["order.placed", "order.paid"]
# Few enough that an id is sometimes taken, enough that there is always a new one.
_IDS = [f"event-{number}" for number in range(60)]
# Mostly in processing: that is where most moves begin, and done is the end.
_FIRST_STATUSES = [*[_PROCESSING] * 5, *[_PENDING] * 2, _DONE]
_MORE_THAN_ALL = 1000


@dataclass
class _Expected:
    """What the model knows of one event."""

    sequence: GlobalSequence
    draft: Draft
    status: EventStatus
    retry_count: int = 0
    errors: list[str] = field(default_factory=list)
    dlq_at: datetime | None = None


def _facts(event: Event) -> tuple[object, ...]:
    return (
        event.global_sequence,
        event.id,
        event.type,
        event.payload,
        event.created_at,
        event.status,
        event.retry_count,
        event.errors,
        event.dlq_at,
    )


def _expected_facts(expected: _Expected) -> tuple[object, ...]:
    draft = expected.draft
    return (
        expected.sequence,
        draft.id,
        draft.type,
        draft.id,
        draft.created_at,
        expected.status,
        expected.retry_count,
        expected.errors,
        expected.dlq_at,
    )


class StoreMachine(RuleBasedStateMachine):
    """Makes the same calls to a store and to a dict, and compares after each."""

    # Numbers that were given out; some of their events are purged by now.
    numbers = Bundle("numbers")

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._model: dict[str, _Expected] = {}
        self._seen: dict[GlobalSequence, EventStatus] = {}
        self._ids: dict[GlobalSequence, str] = {}
        self._clock = ManualClock(auto_advance=True)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._opened = open_store(backend, self._clock)
        self._store = self._run(self._opened.__aenter__())

    def teardown(self) -> None:
        """Close what was opened."""
        self._run(self._opened.__aexit__(None, None, None))
        self._runner.close()

    @initialize(target=numbers)
    def begin_with_some(self) -> MultipleResults[GlobalSequence]:
        """Every other rule has something to work on from the start."""
        return self.add([(event_id, _TYPES[0], _PROCESSING, False) for event_id in _IDS[:6]])

    @rule(
        target=numbers,
        items=st.lists(
            st.tuples(
                st.sampled_from(_IDS),
                st.sampled_from(_TYPES),
                st.sampled_from(_FIRST_STATUSES),
                st.booleans(),
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def add(self, items: list[tuple[str, str, EventStatus, bool]]) -> MultipleResults[GlobalSequence]:
        """Store drafts; all or none if an id is taken that was not given."""
        drafts = [
            make_draft(
                event_type,
                id,
                id=id,
                status=status,
                created_at=self._clock.now(),
                is_idempotent=is_idempotent,
            )
            for id, event_type, status, is_idempotent in items
        ]
        taken = set(self._model)
        for draft in drafts:
            if draft.id in taken and not draft.is_idempotent:
                with pytest.raises(DuplicateEventIdError):
                    self._run(add(self._store, *drafts))
                return multiple()
            taken.add(draft.id)
        stored = self._run(add(self._store, *drafts))
        return multiple(*self._expect_stored(drafts, stored))

    def _expect_stored(
        self, drafts: list[Draft], stored: list[GlobalSequence | None]
    ) -> list[GlobalSequence]:
        new = []
        for draft, number in zip(drafts, stored, strict=True):
            assert (number is None) == (draft.id in self._model)
            if number is not None:
                assert number > max(self._ids, default=0)
                assert draft.status is not None
                self._ids[number] = draft.id
                self._model[draft.id] = _Expected(number, draft, draft.status)
                new.append(number)
        return new

    @rule(number=numbers)
    def finish(self, number: GlobalSequence) -> None:
        """A handler succeeded, perhaps too late."""
        self._store.queue.finish(number)
        for expected in self._in_status(_PROCESSING, [number]):
            expected.status = _DONE

    @rule(number=numbers)
    def fail(self, number: GlobalSequence) -> None:
        """A handler failed and will be tried again."""
        expected = self._by_number().get(number)
        retry_count, errors = (expected.retry_count, expected.errors) if expected is not None else (0, [])
        errors = [*errors, "failed"]
        self._run(self._store.queue.fail(number, retry_count + 1, _encode(errors)))
        for expected in self._in_status(_PROCESSING, [number]):
            expected.retry_count, expected.errors = retry_count + 1, errors

    @rule(number=numbers)
    def bury(self, number: GlobalSequence) -> None:
        """A handler failed for the last time, perhaps too late."""
        self._run(self._store.queue.bury(number, 4, _encode(["a", "b", "c", "d"])))
        for expected in self._in_status(_PROCESSING, [number]):
            expected.status, expected.dlq_at = _DLQ, self._clock.now()
            expected.retry_count, expected.errors = 4, ["a", "b", "c", "d"]

    @precondition(lambda self: self._in_status(_PROCESSING))
    @rule(data=st.data())
    def bury_in_time(self, data: st.DataObject) -> None:
        """A handler failed for the last time; by chance alone dead letters would be rare."""
        self.bury(data.draw(st.sampled_from(self._in_status(_PROCESSING))).sequence)

    @rule(chosen=st.lists(numbers, max_size=4))
    def release(self, chosen: list[GlobalSequence]) -> None:
        """A shutdown gives back what it could not finish."""
        self._run(self._store.queue.release(chosen))
        for expected in self._in_status(_PROCESSING, chosen):
            expected.status = _PENDING

    @rule(chosen=st.lists(numbers, max_size=4))
    def claim(self, chosen: list[GlobalSequence]) -> None:
        """The owner takes up what is pending."""
        claimed = self._run(self._store.backlog.claim(chosen))
        waiting = self._in_status(_PENDING, chosen)
        assert claimed == {expected.sequence for expected in waiting}
        for expected in waiting:
            expected.status = _PROCESSING

    @rule(chosen=st.lists(numbers, max_size=4))
    def settle_pending(self, chosen: list[GlobalSequence]) -> None:
        """The user says that nobody needs to see them."""
        settled = self._run(self._store.backlog.settle_pending(chosen))
        waiting = self._in_status(_PENDING, chosen)
        assert settled == len(waiting)
        for expected in waiting:
            expected.status = _DONE

    @precondition(lambda self: self._in_status(_PROCESSING))
    @rule()
    def recover(self) -> None:
        """A process ended, and the next one tidies up."""
        recovered = self._run(self._store.backlog.recover("ended", "ended"))
        left_behind = self._in_status(_PROCESSING)
        assert recovered == len(left_behind)
        for expected in left_behind:
            expected.status = _PENDING
            expected.retry_count += 1
            expected.errors = [*expected.errors, "ended"]

    @rule(number=numbers)
    def revive(self, number: GlobalSequence) -> None:
        """The user retries a dead letter, or what they took for one."""
        event_id = self._ids[number]
        expected = self._model.get(event_id)
        if expected is None:
            with pytest.raises(EventNotFoundError):
                self._run(self._store.dead_letters.revive(event_id))
        elif expected.status is not _DLQ:
            with pytest.raises(NotADeadLetterError, match=expected.status.value):
                self._run(self._store.dead_letters.revive(event_id))
        else:
            self._run(self._store.dead_letters.revive(event_id))
            _reset(expected)

    @precondition(lambda self: self._in_status(_DLQ))
    @rule(event_type=st.sampled_from([None, *_TYPES]))
    def revive_all(self, event_type: str | None) -> None:
        """The user retries all dead letters, or those of one type."""
        revived = self._run(self._store.dead_letters.revive_all(event_type, None))
        dead = [each for each in self._in_status(_DLQ) if event_type in (None, each.draft.type)]
        assert revived == len(dead)
        for expected in dead:
            _reset(expected)

    @precondition(lambda self: self._in_status(_DLQ))
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        """The user deletes dead letters that are as old as one of them, or older."""
        cutoff = data.draw(st.sampled_from(self._in_status(_DLQ))).draft.created_at
        purged = self._run(self._store.dead_letters.purge(cutoff))
        old = [expected for expected in self._in_status(_DLQ) if expected.draft.created_at <= cutoff]
        assert purged == len(old)
        for expected in old:
            del self._model[expected.draft.id]

    @rule()
    def restart(self) -> None:
        """The store is closed in an orderly way and opened again."""
        self._run(self._store.close())
        self._run(self._store.open())

    @rule(seconds=st.integers(1, 10))
    def let_time_pass(self, seconds: int) -> None:
        """Events have different ages."""
        self._run(self._clock.sleep(seconds))

    @invariant()
    def the_store_has_what_the_dict_has(self) -> None:
        """Same events, same pending ones in order, same dead letters newest first; nothing more."""
        events, pending, dead = self._run(self._read_all())
        self._check_moves(events)
        waiting = sorted(self._in_status(_PENDING), key=lambda each: each.sequence)
        buried = sorted(
            self._in_status(_DLQ), key=lambda each: (each.draft.created_at, each.sequence), reverse=True
        )

        assert {event.id: _facts(event) for event in events} == {
            event_id: _expected_facts(expected) for event_id, expected in self._model.items()
        }
        assert [_facts(event) for event in pending] == [_expected_facts(expected) for expected in waiting]
        assert [_facts(event) for event in dead.events] == [_expected_facts(expected) for expected in buried]
        assert dead.total == len(buried)

    async def _read_all(self) -> tuple[list[Event], list[Event], DeadLetterPage]:
        events = []
        for event_id in sorted(set(self._ids.values())):
            with contextlib.suppress(EventNotFoundError):
                events.append(await self._store.get(event_id))
        pending = await self._store.backlog.pending(GlobalSequence(0), _MORE_THAN_ALL)
        return events, pending, await self._store.dead_letters.page(_MORE_THAN_ALL, 0, None)

    def _check_moves(self, events: list[Event]) -> None:
        for event in events:
            assert event.global_sequence is not None
            before = self._seen.get(event.global_sequence, event.status)
            assert before is event.status or can_move(before, event.status)
            self._seen[event.global_sequence] = event.status

    def _run(self, call: Coroutine[object, object, T]) -> T:
        return self._runner.run(call)

    def _by_number(self) -> dict[GlobalSequence, _Expected]:
        return {expected.sequence: expected for expected in self._model.values()}

    def _in_status(self, status: EventStatus, chosen: list[GlobalSequence] | None = None) -> list[_Expected]:
        return [
            expected
            for expected in self._model.values()
            if expected.status is status and (chosen is None or expected.sequence in chosen)
        ]


def _encode(errors: list[str]) -> str:
    return msgspec.json.encode(errors).decode()


def _reset(expected: _Expected) -> None:
    expected.status, expected.retry_count, expected.errors, expected.dlq_at = _PENDING, 0, [], None


@on_embedded
def test_any_order_of_calls_leaves_what_a_dict_would_have(backend: Backend) -> None:
    """Same statuses, same attempts, same order, nothing lost, no move that is not allowed."""

    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(backend)

    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=40))
