"""Groups: what queues up while a flush is in flight goes together, and every job is answered."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.stores.postgres.groups import Groups
from tests.patience import PATIENCE


class Sink:
    """Takes groups and lets each go on when it is told to."""

    def __init__(self, *, at_once: int = 1, largest: int = 1000) -> None:
        self.groups: list[list[int]] = []
        self.refused: list[tuple[int, BaseException]] = []
        self.error: BaseException | None = None
        self._gates: list[asyncio.Event] = []
        self.jobs = Groups(
            self._flush, lambda job, error: self.refused.append((job, error)), at_once=at_once,
            size_of=lambda job: job, largest=largest,
        )  # fmt: skip

    async def submit(self, *jobs: int) -> None:
        """Submit them in one turn and let the flushes begin."""
        for job in jobs:
            self.jobs.submit(job)
        await turns()

    async def let_go(self, index: int) -> None:
        """End the flush of a group."""
        self._gates[index].set()
        await turns()

    async def _flush(self, group: list[int]) -> None:
        gate = asyncio.Event()
        self.groups.append(group)
        self._gates.append(gate)
        await gate.wait()
        if self.error is not None:
            raise self.error


async def turns(count: int = 5) -> None:
    """Let everything happen that can happen now."""
    for _ in range(count):
        await asyncio.sleep(0)


class TestGrouping:
    async def test_jobs_of_one_turn_go_together_in_their_order(self) -> None:
        """The first does not go ahead alone."""
        sink = Sink(at_once=2)
        await sink.submit(3, 1, 2)

        assert sink.groups == [[3, 1, 2]]

    async def test_jobs_that_come_during_a_flush_go_together_in_the_next(self) -> None:
        """However many turns they come in."""
        sink = Sink()
        await sink.submit(1)
        await sink.submit(2)
        await sink.submit(3, 4)
        await sink.let_go(0)

        assert sink.groups == [[1], [2, 3, 4]]

    async def test_no_more_flushes_than_allowed_are_in_flight(self) -> None:
        """What comes then waits for the first that ends, whichever it is."""
        sink = Sink(at_once=2)
        for job in (1, 2, 3, 4):
            await sink.submit(job)
        in_flight = list(sink.groups)
        await sink.let_go(1)

        assert in_flight == [[1], [2]]
        assert sink.groups == [[1], [2], [3, 4]]

    async def test_who_was_answered_comes_along_with_those_who_wait(self) -> None:
        """Publishers that go on and on share one flush: they do not split into two halves for ever."""
        groups: list[Sequence[int]] = []
        answers: dict[int, asyncio.Future[None]] = {}

        async def flush(group: list[int]) -> None:
            groups.append(group)
            await asyncio.sleep(0.001)
            for job in group:
                answers[job].set_result(None)

        jobs = Groups(flush, lambda job, error: answers[job].set_exception(error))

        async def publish_again_and_again(name: int) -> None:
            for number in range(10):
                job = 100 * name + number
                answers[job] = asyncio.get_running_loop().create_future()
                jobs.submit(job)
                await answers[job]

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish_again_and_again(1))
            await turns()
            tasks.create_task(publish_again_and_again(2))

        assert [len(group) for group in groups] == [1, *[2] * 9, 1]

    @pytest.mark.parametrize("turn_count", range(6))
    async def test_a_job_that_comes_while_the_last_flush_ends_is_not_forgotten(self, turn_count: int) -> None:
        """Whoever looks for jobs has looked for the last time, and is not gone yet."""
        call_soon = asyncio.get_running_loop().call_soon
        flushed: list[int] = []

        def submit_later(left: int) -> None:
            if left:
                call_soon(submit_later, left - 1)
            else:
                jobs.submit(2)

        async def flush(group: list[int]) -> None:
            flushed.extend(group)
            if group == [1]:
                call_soon(submit_later, turn_count)

        jobs: Groups[int] = Groups(flush, _fail)
        jobs.submit(1)
        await turns(20)

        assert flushed == [1, 2]

    async def test_a_group_is_no_larger_than_allowed(self) -> None:
        """Only a single job may be, and it goes alone."""
        sink = Sink(largest=10)
        await sink.submit(4, 6, 1, 11, 9, 1, 1)
        for index in range(5):
            await sink.let_go(index) if index < len(sink.groups) else None

        assert sink.groups == [[4, 6], [1], [11], [9, 1], [1]]

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30), st.integers(1, 3))
    def test_every_job_is_flushed_once_and_in_order(self, jobs: list[tuple[int, int]], at_once: int) -> None:
        """Whenever it is submitted, and however long the flushes take."""
        flushed: list[int] = []
        most = 0

        async def run() -> None:
            nonlocal most
            in_flight = 0

            async def flush(group: list[int]) -> None:
                nonlocal in_flight, most
                in_flight += 1
                most = max(most, in_flight)
                flushed.extend(group)
                await turns(max(jobs[number][0] for number in group))
                in_flight -= 1

            groups: Groups[int] = Groups(flush, _fail, at_once=at_once)
            for number, (_, pause) in enumerate(jobs):
                groups.submit(number)
                await turns(pause)
            await groups.drain()

        asyncio.run(run())

        assert flushed == list(range(len(jobs)))
        assert most <= at_once


def _fail(_: int, error: BaseException) -> None:
    raise error


class TestFailure:
    async def test_a_flush_that_raises_refuses_its_jobs_and_no_others(self) -> None:
        """Those who wait get their turn."""
        sink = Sink()
        await sink.submit(1, 2)
        await sink.submit(3)
        sink.error = OSError("gone")
        await sink.let_go(0)
        refused, sink.error = list(sink.refused), None
        await sink.let_go(1)

        assert refused == sink.refused == [(1, refused[0][1]), (2, refused[0][1])]
        assert isinstance(refused[0][1], OSError)
        assert sink.groups == [[1, 2], [3]]

    async def test_who_is_cancelled_leaves_the_job_where_it_is(self) -> None:
        """The group does not belong to the task that submitted first."""
        sink = Sink()
        task = asyncio.create_task(sink.submit(1))
        await turns(2)
        task.cancel()
        await turns()
        await sink.submit(2)
        await sink.let_go(0)

        assert sink.groups == [[1], [2]]
        assert sink.refused == []

    @pytest.mark.parametrize("turn_count", [0, 1, 5])
    async def test_when_the_event_loop_ends_every_job_is_refused(self, turn_count: int) -> None:
        """In flight, waiting, or not even looked at: nobody who waits for one waits for ever."""
        sink = Sink()

        async def end_early() -> None:
            sink.jobs.submit(1)
            await turns(turn_count)
            sink.jobs.submit(2)

        await asyncio.to_thread(asyncio.run, end_early())

        assert [job for job, _ in sink.refused] == [1, 2]
        assert all(isinstance(error, asyncio.CancelledError) for _, error in sink.refused)

    async def test_groups_work_on_in_the_next_event_loop(self) -> None:
        """A store may be closed in one and opened in another."""
        sink = Sink()

        async def end_early() -> None:
            sink.jobs.submit(1)

        await asyncio.to_thread(asyncio.run, end_early())
        await sink.submit(2)

        assert sink.groups[-1] == [2]


class TestDrain:
    async def test_drain_waits_for_what_is_in_flight_and_what_waits(self) -> None:
        """And for nothing else."""
        sink = Sink()
        await sink.jobs.drain()
        await sink.submit(1)
        await sink.submit(2)
        draining = asyncio.create_task(sink.jobs.drain())
        await sink.let_go(0)
        was_done = draining.done()
        await sink.let_go(1)
        async with asyncio.timeout(PATIENCE):
            await draining

        assert not was_done
        assert sink.groups == [[1], [2]]
