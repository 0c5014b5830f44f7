"""Any order of calls of writers and durable subscribers: every store does what a few dicts would do."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from postbus.errors import (
    DuplicateEventIdError,
    EventNotFoundError,
    NotADeadLetterError,
    SubscriberFencedError,
    WrongExpectedVersionError,
)
from postbus.events import (
    Burial,
    DeadLetter,
    Draft,
    Event,
    EventStatus,
    GlobalSequence,
    Progress,
    RetryOutcome,
    StateWrite,
    SubscriberId,
)
from postbus.testing import ManualClock
from tests.contracts.backends import Backend, open_store
from tests.contracts.steps import BEGINNING, MAIL, STOCK, add, make_draft, read_to_the_end

T = TypeVar("T")

_TYPES = ["order.placed", "order.paid"]
_STREAMS = ["a", "b", None]
# Few enough that an id is sometimes taken, enough that there is mostly a new one.
_IDS = [f"event-{number}" for number in range(80)]
_KEYS = ["x", "y"]
_SUBSCRIBERS = [MAIL, STOCK]
_MORE_THAN_ALL = 1000
# Drafts may have both flaws; which of them is found first is the store's business.
_REFUSALS = (DuplicateEventIdError, WrongExpectedVersionError)

# Event id, type, stream, whether it expects a version and by how much that is wrong, whether it is given.
_Item = tuple[str, str, str | None, int | None, bool]

items = st.lists(
    st.tuples(
        st.sampled_from(_IDS),
        st.sampled_from(_TYPES),
        st.sampled_from(_STREAMS),
        st.sampled_from([None, None, 0, 0, 0, 1]),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)
subscribers = st.sampled_from(_SUBSCRIBERS)


@dataclass
class _Stored:
    """What the model knows of one event."""

    sequence: int
    draft: Draft
    version: int | None
    status: EventStatus = EventStatus.DONE
    purger_id: str | None = None
    resolved_by: str | None = None

    @property
    def facts(self) -> tuple[object, ...]:
        payload = None if self.purger_id is not None else self.draft.id
        return self.sequence, self.draft.id, self.version, payload, self.status, self.purger_id


@dataclass
class _Dead:
    """What the model knows of a durable subscriber's dead letter."""

    subscriber_id: SubscriberId
    event: _Stored
    errors: list[str]
    died_at: datetime
    is_wanted: bool = False
    resolved_by: str | None = None

    @property
    def facts(self) -> tuple[object, ...]:
        return self.event.draft.id, self.subscriber_id, self.errors, self.resolved_by


@dataclass
class _Subscriber:
    """What the model knows of a durable subscriber."""

    position: int = 0
    epoch: int = 0
    is_owned: bool = False
    attempt: tuple[int | None, int] = (None, 0)


@dataclass
class _Model:
    log: dict[str, _Stored] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    subscribers: dict[SubscriberId, _Subscriber] = field(default_factory=dict)
    dead: dict[tuple[SubscriberId, str], _Dead] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    last_sequence: int = 0

    def can_store(self, drafts: Sequence[Draft]) -> bool:
        """Whether no id is taken and every stream is where it is expected."""
        taken, versions = set(self.log), dict(self.versions)
        for draft in drafts:
            if draft.id in taken:
                if not draft.is_idempotent:
                    return False
                continue
            taken.add(draft.id)
            if draft.stream_id is not None:
                version = versions.get(draft.stream_id, 0)
                if draft.expected_version not in (None, version):
                    return False
                versions[draft.stream_id] = version + 1
        return True

    def store(self, drafts: Sequence[Draft], numbers: Sequence[int]) -> None:
        """Take drafts in, under the numbers that the store gave to the new ones."""
        left = list(numbers)
        for draft in drafts:
            if draft.id in self.log:
                continue
            version = None
            if draft.stream_id is not None:
                version = self.versions[draft.stream_id] = self.versions.get(draft.stream_id, 0) + 1
            number = left.pop(0)
            assert number > self.last_sequence
            self.last_sequence = number
            assert draft.status is not None
            self.log[draft.id] = _Stored(number, draft, version, draft.status)
        assert not left

    def listed(self, subscriber_id: SubscriberId | None) -> list[tuple[object, ...]]:
        """The unresolved dead letters, newest first."""
        found: list[tuple[datetime, int, tuple[object, ...]]] = [
            (dead.died_at, dead.event.sequence, dead.facts)
            for dead in self.dead.values()
            if dead.resolved_by is None and subscriber_id in (None, dead.subscriber_id)
        ]
        if subscriber_id is None:
            found += [
                (event.draft.created_at, event.sequence, (event.draft.id, None, ["boom"], None))
                for event in self.log.values()
                if event.status is EventStatus.DLQ and event.resolved_by is None
            ]
        return [facts for *_, facts in sorted(found, key=lambda each: each[:2], reverse=True)]


class LogMachine(RuleBasedStateMachine):
    """Makes the same calls to a store and to a model, and compares after each."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._model = _Model()
        self._clock = ManualClock(auto_advance=True)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._opened = open_store(backend, self._clock)
        self._store = self._run(self._opened.__aenter__())

    def teardown(self) -> None:
        """Close what was opened."""
        self._run(self._opened.__aexit__(None, None, None))
        self._runner.close()

    @initialize()
    def begin_with_some(self) -> None:
        """Every other rule has something to work on from the start."""
        self.append([(event_id, _TYPES[0], "a", None, False) for event_id in _IDS[:3]])
        for subscriber_id in _SUBSCRIBERS:
            self.claim(subscriber_id)
            self.save(subscriber_id, 0, 1, [_IDS[0]], [], [], [])

    @rule(items=items)
    def append(self, items: list[_Item]) -> None:
        """Store drafts; all or none."""
        drafts = self._drafts(items)
        if not self._model.can_store(drafts):
            with pytest.raises(_REFUSALS):
                self._run(self._store.log.append(drafts))
            return
        stored = self._run(self._store.log.append(drafts))
        assert [event.id for event in stored] == [draft.id for draft in drafts]
        numbers = {event.global_sequence or 0 for event in stored if event.id not in self._model.log}
        self._model.store(drafts, sorted(numbers))

    @precondition(lambda self: self._store.has_handlers)
    @rule(event_id=st.sampled_from(_IDS), stream_id=st.sampled_from(_STREAMS))
    def bury_with_handlers(self, event_id: str, stream_id: str | None) -> None:
        """The in-process handlers gave an event up."""
        if event_id in self._model.log:
            return
        draft = self._draft(event_id, _TYPES[0], stream_id, EventStatus.PROCESSING)
        (number,) = self._run(add(self._store, draft))
        assert number is not None
        self._run(self._store.queue.bury(number, 1, '["boom"]'))
        self._model.store([draft], [number])
        self._model.log[event_id].status = EventStatus.DLQ

    @rule(subscriber_id=subscribers)
    def claim(self, subscriber_id: SubscriberId) -> None:
        """An instance takes a subscriber over."""
        claimed = self._run(self._store.checkpoints.claim(subscriber_id, BEGINNING))
        known = self._model.subscribers.setdefault(subscriber_id, _Subscriber())
        assert claimed.epoch > known.epoch
        assert (claimed.was_interrupted, claimed.position) == (known.is_owned, known.position)
        assert (claimed.attempt_sequence, claimed.attempt_count) == known.attempt
        known.epoch, known.is_owned = claimed.epoch, True

    @rule(subscriber_id=subscribers, age=st.sampled_from([0, 0, 1]))
    def release(self, subscriber_id: SubscriberId, age: int) -> None:
        """An instance lets go, perhaps too late."""
        known = self._model.subscribers[subscriber_id]
        self._run(self._store.checkpoints.release(subscriber_id, known.epoch - age))
        if age == 0:
            known.is_owned = False

    @rule(
        subscriber_id=subscribers,
        age=st.sampled_from([0, 0, 0, 1]),
        position=st.integers(0, 100),
        buried=st.lists(st.sampled_from(_IDS), max_size=2, unique=True),
        retried=st.lists(
            st.tuples(st.sampled_from(_IDS), st.booleans()), max_size=2, unique_by=lambda each: each[0]
        ),
        states=st.lists(st.tuples(st.sampled_from(_KEYS), st.sampled_from([None, b"1", b"2"])), max_size=2),
        items=st.one_of(st.just([]), items),
    )
    def save(
        self,
        subscriber_id: SubscriberId,
        age: int,
        position: int,
        buried: list[str],
        retried: list[tuple[str, bool]],
        states: list[tuple[str, bytes | None]],
        items: list[_Item],
    ) -> None:
        """A subscriber writes something of everything, perhaps too late."""
        known = self._model.subscribers[subscriber_id]
        # An event is buried, or its dead letter is retried.
        retried = [each for each in retried if each[0] not in buried]
        present = [event_id for event_id in buried if event_id in self._model.log]
        events = [self._run(self._store.get(event_id)) for event_id in present]
        retries = [
            RetryOutcome(self._dead_letter_id(subscriber_id, event_id), None if is_done else "again")
            for event_id, is_done in retried
        ]
        drafts = self._drafts(items)
        progress = Progress(
            subscriber_id=subscriber_id,
            epoch=known.epoch - age,
            position=GlobalSequence(position),
            attempt_sequence=GlobalSequence(position + 1),
            attempt_count=1,
            burials=[Burial(event, ["boom"]) for event in events],
            retries=retries,
            states=[StateWrite("orders", key, state) for key, state in states],
            drafts=drafts,
        )
        if age or not self._model.can_store(drafts):
            with pytest.raises(SubscriberFencedError if age else _REFUSALS):
                self._run(self._store.checkpoints.save(progress))
            return
        self._run(self._store.checkpoints.save(progress))
        known.position, known.attempt = max(known.position, position), (position + 1, 1)
        self._expect_burials(subscriber_id, present)
        self._expect_retries(subscriber_id, retried)
        for key, state in states:
            self._model.states.pop(key, None)
            if state is not None:
                self._model.states[key] = state
        self._model.store(drafts, self._new_numbers())

    def _expect_burials(self, subscriber_id: SubscriberId, event_ids: list[str]) -> None:
        for event_id in event_ids:
            event = self._model.log[event_id]
            self._model.dead[subscriber_id, event_id] = _Dead(
                subscriber_id, event, ["boom"], self._clock.now()
            )

    def _expect_retries(self, subscriber_id: SubscriberId, retried: list[tuple[str, bool]]) -> None:
        for event_id, is_done in retried:
            dead = self._model.dead.get((subscriber_id, event_id))
            if dead is None:
                continue
            dead.is_wanted = False
            if is_done:
                dead.resolved_by = subscriber_id
            else:
                dead.errors = [*dead.errors, "again"]

    @rule(event_id=st.sampled_from(_IDS), by=st.sampled_from([None, "anna"]))
    def revive_or_resolve(self, event_id: str, by: str | None) -> None:
        """The user retries or resolves all dead letters of an event, or what they took for some."""
        call = (
            self._store.dead_letters.revive(event_id)
            if by is None
            else self._store.dead_letters.resolve(event_id, by, None)
        )
        event = self._model.log.get(event_id)
        all_dead = [dead for (_, dead_id), dead in self._model.dead.items() if dead_id == event_id]
        unresolved = [dead for dead in all_dead if dead.resolved_by is None]
        is_handlers = event is not None and event.status is EventStatus.DLQ
        if event is not None and is_handlers and event.resolved_by is None:
            event.resolved_by, event.status = by, EventStatus.PENDING if by is None else EventStatus.DLQ
        elif not unresolved:
            is_known = event is not None or all_dead
            with pytest.raises(NotADeadLetterError if is_known else EventNotFoundError):
                self._run(call)
            return
        self._run(call)
        for dead in unresolved:
            dead.is_wanted, dead.resolved_by = by is None, by

    @rule(event_type=st.sampled_from([None, *_TYPES]), subscriber_id=st.sampled_from([None, *_SUBSCRIBERS]))
    def revive_all(self, event_type: str | None, subscriber_id: SubscriberId | None) -> None:
        """The user retries all dead letters, or those of one type, of one subscriber."""
        revived = self._run(self._store.dead_letters.revive_all(event_type, subscriber_id))
        dead = [
            each
            for each in self._model.dead.values()
            if each.resolved_by is None
            and event_type in (None, each.event.draft.type)
            and subscriber_id in (None, each.subscriber_id)
        ]
        events = [
            event
            for event in self._model.log.values()
            if event.status is EventStatus.DLQ
            and event.resolved_by is None
            and event_type in (None, event.draft.type)
            and subscriber_id is None
        ]
        assert revived == len(dead) + len(events)
        for each in dead:
            each.is_wanted = True
        for event in events:
            event.status = EventStatus.PENDING

    @rule(seconds=st.integers(0, 60))
    def purge_dead_letters(self, seconds: int) -> None:
        """The user deletes old dead letters; an event of the handlers' goes with them if nobody needs it."""
        cutoff = self._clock.now() - timedelta(seconds=seconds)
        purged = self._run(self._store.dead_letters.purge(cutoff))
        old = [key for key, dead in self._model.dead.items() if dead.died_at <= cutoff]
        gone = [
            event_id
            for event_id, event in self._model.log.items()
            if event.status is EventStatus.DLQ and event.draft.created_at <= cutoff
        ]
        assert purged == len(old) + len(gone)
        for key in old:
            del self._model.dead[key]
        lowest = min((each.position for each in self._model.subscribers.values() if each.epoch), default=None)
        for event_id in gone:
            event = self._model.log[event_id]
            if event.draft.stream_id is not None or (lowest is not None and event.sequence > lowest):
                event.status = EventStatus.DONE
            else:
                del self._model.log[event_id]

    @rule(event_id=st.sampled_from(_IDS), purger_id=st.sampled_from(["anna", "bert"]))
    def purge_event(self, event_id: str, purger_id: str) -> None:
        """The user takes a payload away, perhaps not as the first."""
        event = self._model.log.get(event_id)
        if event is None:
            with pytest.raises(EventNotFoundError):
                self._run(self._store.log.purge(event_id, purger_id))
        else:
            self._run(self._store.log.purge(event_id, purger_id))
            event.purger_id = event.purger_id or purger_id

    @precondition(lambda self: self._model.states)
    @rule(key=st.sampled_from(_KEYS))
    def delete_state(self, key: str) -> None:
        """A state store deletes by itself."""
        self._run(self._store.states.put("orders", key, None))
        self._model.states.pop(key, None)

    @rule()
    def restart(self) -> None:
        """The store is closed in an orderly way and opened again."""
        self._run(self._store.close())
        self._run(self._store.open())

    @rule(seconds=st.integers(1, 20))
    def let_time_pass(self, seconds: int) -> None:
        """Events and dead letters have different ages."""
        self._run(self._clock.sleep(seconds))

    @invariant()
    def the_log_is_that_of_the_model(self) -> None:
        """The same events in the same order, in the log and in the streams; the end is the head."""
        events, end = self._run(read_to_the_end(self._store, 7))
        expected = sorted(self._model.log.values(), key=lambda event: event.sequence)

        assert [_facts(event) for event in events] == [event.facts for event in expected]
        assert end >= self._run(self._store.log.head()) == self._store.log.known_head
        for stream_id in filter(None, _STREAMS):
            stream = self._run(self._store.log.read_stream(stream_id, 1, None))
            assert [_facts(event) for event in stream] == [
                event.facts for event in expected if event.draft.stream_id == stream_id
            ]

    @invariant()
    def the_dead_letters_are_those_of_the_model(self) -> None:
        """Listed, wanted, and found by their events; no payload that was purged comes back."""
        for subscriber_id in (None, *_SUBSCRIBERS):
            page = self._run(self._store.dead_letters.page(_MORE_THAN_ALL, 0, subscriber_id))
            assert page.total == len(page.events)
            assert _sorted(page.events) == sorted(self._model.listed(subscriber_id), key=repr)
            if subscriber_id is not None:
                assert [_dead_facts(dead) for dead in page.events] == self._model.listed(subscriber_id)
                wanted = self._run(self._store.dead_letters.wanted_retries(subscriber_id, _MORE_THAN_ALL))
                marked = [d for d in self._model.dead.values() if d.is_wanted]
                assert _sorted(wanted) == sorted(
                    [d.facts for d in marked if d.subscriber_id == subscriber_id], key=repr
                )
            for dead in page.events:
                event = self._model.log.get(dead.id)
                if event is not None and event.purger_id is not None:
                    assert (dead.payload, dead.purger_id) == (None, event.purger_id)

    @invariant()
    def checkpoints_and_states_are_those_of_the_model(self) -> None:
        """Never ahead, never back."""
        checkpoints = self._run(self._store.checkpoints.list())
        states = self._run(self._store.states.items("orders", "", _MORE_THAN_ALL))

        assert [(each.subscriber_id, each.position, each.epoch) for each in checkpoints] == [
            (subscriber_id, known.position, known.epoch)
            for subscriber_id, known in sorted(self._model.subscribers.items())
        ]
        assert dict(states) == self._model.states

    def _run(self, call: Coroutine[object, object, T]) -> T:
        return self._runner.run(call)

    def _drafts(self, items: list[_Item]) -> list[Draft]:
        """Drafts that expect the version at which their stream is, or one that is wrong by a little."""
        versions = dict(self._model.versions)
        drafts = []
        for event_id, event_type, stream_id, offset, is_idempotent in items:
            expected = None
            if stream_id is not None and offset is not None:
                expected = versions.get(stream_id, 0) + offset
                versions[stream_id] = versions.get(stream_id, 0) + 1
            drafts.append(
                self._draft(event_id, event_type, stream_id, EventStatus.DONE, expected, is_idempotent)
            )
        return drafts

    def _draft(
        self,
        event_id: str,
        event_type: str,
        stream_id: str | None,
        status: EventStatus,
        expected_version: int | None = None,
        is_idempotent: bool = False,
    ) -> Draft:
        return make_draft(
            event_type,
            event_id,
            id=event_id,
            status=status,
            created_at=self._clock.now(),
            is_idempotent=is_idempotent,
            stream_id=stream_id,
            expected_version=expected_version,
        )

    def _dead_letter_id(self, subscriber_id: SubscriberId, event_id: str) -> str:
        page = self._run(self._store.dead_letters.page(_MORE_THAN_ALL, 0, subscriber_id))
        ids = [dead.dead_letter_id for dead in page.events if dead.id == event_id]
        return ids[0] if ids else "gone"

    def _new_numbers(self) -> list[int]:
        # Not by a page of the log: that may hold fewer than there are.
        events = self._run(self._store.read_all(self._model.last_sequence, _MORE_THAN_ALL))
        return [event.global_sequence or 0 for event in events]


def _facts(event: Event) -> tuple[object, ...]:
    return (
        event.global_sequence,
        event.id,
        event.stream_version,
        event.payload,
        event.status,
        event.purger_id,
    )


def _dead_facts(dead: DeadLetter) -> tuple[object, ...]:
    return dead.id, dead.subscriber_id, dead.errors, dead.resolved_by


def _sorted(dead: list[DeadLetter]) -> list[tuple[object, ...]]:
    """In an order that does not depend on which subscriber gave an event up first at one moment."""
    return sorted([_dead_facts(each) for each in dead], key=repr)


def test_any_order_of_calls_leaves_what_the_model_has(backend: Backend) -> None:
    """The same log, streams, checkpoints, dead letters and states; nothing lost, nothing half-written."""

    class Machine(LogMachine):
        def __init__(self) -> None:
            super().__init__(backend)

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=backend.examples_of(30), stateful_step_count=40)
    )
