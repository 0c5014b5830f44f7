"""Transactions that leave gaps: whatever a program may do with a number of the sequence."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine

import asyncpg

from postbus import PgEventBus
from tests.end_to_end.children.gap_subscribers import RARE
from tests.end_to_end.gap_history import Transaction

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled-back", "unknown"
_NEXT = "SELECT nextval('postbus.events_global_sequence_seq')"
_INSERT = "INSERT INTO postbus.events (id, event_type, data) VALUES ($1, $2, '1') RETURNING global_sequence"
_INSERT_AT = "INSERT INTO postbus.events (global_sequence, id, event_type, data) VALUES ($1, $2, $3, '1')"
_PUBLISH = "SELECT postbus.publish($1, '1', stream_id => $2, event_id => $3, notify => $4)"
_UNDONE_BLOCK = """DO $$ BEGIN
    BEGIN
        INSERT INTO postbus.events (id, event_type, data) VALUES ('{undone}', '{type}', '1');
        RAISE EXCEPTION 'undo this';
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
    INSERT INTO postbus.events (id, event_type, data) VALUES ('{kept}', '{type}', '1');
END $$"""
# Few enough that appends to the same stream meet.
STREAM_COUNT = 30


def choose_type(chance: random.Random) -> str:
    """Mostly the same."""
    return RARE if chance.random() < 0.15 else "stress.done"


class Work:
    """One transaction at work: what it has drawn, and what it will have stored when it is committed."""

    def __init__(
        self,
        kind: str,
        connection: "asyncpg.Connection[asyncpg.Record]",
        chance: random.Random,
        bus: PgEventBus,
        new_id: Callable[[], str],
    ) -> None:
        self.connection, self.chance, self.bus, self.new_id = connection, chance, bus, new_id
        self.kind = kind
        self.type = choose_type(chance)
        self.drawn: set[int] = set()
        self.stored: dict[str, int | None] = {}
        self._began_at = time.monotonic()

    async def run(self, sql: str, *args: object) -> None:
        """One statement."""
        await self.connection.execute(sql, *args)

    async def pause(self) -> None:
        """Mostly none, sometimes short, rarely long."""
        fate = self.chance.random()
        if fate > 0.98:
            await asyncio.sleep(self.chance.uniform(0.1, 0.5))
        elif fate > 0.93:
            await asyncio.sleep(self.chance.uniform(0.005, 0.1))
        elif fate > 0.6:
            await asyncio.sleep(self.chance.uniform(0.0, 0.005))

    async def draw(self) -> int:
        """A number, and nothing else."""
        number: int = await self.connection.fetchval(_NEXT)
        self.drawn.add(number)
        return number

    async def insert(self, number: int | None = None) -> str:
        """An event at the next number, or at one that this transaction has drawn."""
        event_id = self.new_id()
        if number is None:
            number = await self.connection.fetchval(_INSERT, event_id, self.type)
            self.drawn.add(number)
        else:
            await self.run(_INSERT_AT, number, event_id, self.type)
        self.stored[event_id] = number
        return event_id

    async def publish(self, stream_id: str) -> None:
        """An event of a stream, by the function for SQL."""
        event_id = self.new_id()
        # A notification would make PREPARE TRANSACTION fail.
        number: int = await self.connection.fetchval(
            _PUBLISH, self.type, stream_id, event_id, self.kind != "prepare"
        )
        self.drawn.add(number)
        self.stored[event_id] = number

    def undo(self, event_id: str) -> int | None:
        """The event was given back to a savepoint; the number that it had."""
        return self.stored.pop(event_id)

    async def commit(self) -> str:
        """End it, and say how."""
        await self.run("COMMIT")
        return COMMITTED

    async def end(self) -> str:
        """One way or the other."""
        if self.chance.random() < 0.6:
            return await self.commit()
        await self.run("ROLLBACK")
        return ROLLED_BACK

    def told(self, outcome: str) -> Transaction:
        """What there is to tell about it."""
        ids = () if outcome == ROLLED_BACK else tuple(self.stored)
        used = set(self.stored.values()) if outcome == COMMITTED else set()
        dead = () if outcome == UNKNOWN else tuple(sorted(self.drawn - used))
        return Transaction(self.kind, outcome, self._began_at, time.monotonic(), ids, dead)


async def insert_alone(work: Work) -> str:
    """A statement that is its own transaction."""
    await work.insert()
    return COMMITTED


async def insert_some(work: Work) -> str:
    """One event or several, with other things to do in between."""
    await work.run("BEGIN")
    for _ in range(work.chance.choice((1, 1, 2, 3))):
        await work.insert()
        await work.pause()
    return await work.commit()


async def roll_back(work: Work) -> str:
    """Numbers that nobody will ever use."""
    await work.run("BEGIN")
    for _ in range(work.chance.choice((1, 1, 2, 4))):
        await work.insert()
        await work.pause()
    await work.run("ROLLBACK")
    return ROLLED_BACK


async def use_savepoint(work: Work) -> str:
    """Some of its numbers are given back, and perhaps used after all."""
    await work.run("BEGIN")
    if work.chance.random() < 0.5:
        await work.insert()
    await work.run("SAVEPOINT here")
    undone = await work.insert()
    await work.pause()
    await work.run("ROLLBACK TO here")
    number = work.undo(undone)
    await work.pause()
    if work.chance.random() < 0.6:
        await work.insert(number if work.chance.random() < 0.5 else None)
    return await work.end()


async def use_exception_block(work: Work) -> str:
    """A PL/pgSQL block that fails, and its transaction goes on."""
    undone, kept = work.new_id(), work.new_id()
    await work.run("BEGIN")
    await work.run(_UNDONE_BLOCK.format(type=work.type, undone=undone, kept=kept))
    work.stored[kept] = None
    await work.pause()
    return await work.end()


async def draw_first(work: Work) -> str:
    """Numbers long before they are used, in another order, some of them never."""
    await work.run("BEGIN")
    numbers = [await work.draw() for _ in range(work.chance.choice((1, 1, 2, 4)))]
    await work.pause()
    work.chance.shuffle(numbers)
    for number in numbers:
        if work.chance.random() < 0.8:
            await work.insert(number)
            await work.pause()
    return await work.end()


async def copy(work: Work) -> str:
    """It draws its numbers row by row, and writes them when its buffer is full."""

    async def rows() -> AsyncIterator[bytes]:
        for event_id in ids:
            yield f"{event_id}\t{work.type}\t1\n".encode()
            await work.pause()

    ids = [work.new_id() for _ in range(work.chance.randint(1, 4))]
    await work.run("BEGIN")
    await work.connection.copy_to_table(
        "events", schema_name="postbus", columns=["id", "event_type", "data"], source=rows()
    )
    work.stored.update(dict.fromkeys(ids))
    return await work.end()


async def publish_in_sql(work: Work) -> str:
    """To a stream, whose other writers have to wait until it ends."""
    await work.run("BEGIN")
    stream_id = f"stream-{work.chance.randrange(STREAM_COUNT)}"
    for _ in range(work.chance.choice((1, 2))):
        await work.publish(stream_id)
        await work.pause()
    return await work.end()


async def publish_within(work: Work) -> str:
    """By the bus, in a transaction of ours."""
    await work.run("BEGIN")
    stream_id = f"stream-{work.chance.randrange(STREAM_COUNT)}"
    event_id = await work.bus.publish(work.type, 1, stream_id=stream_id, connection=work.connection)
    work.stored[event_id] = None
    await work.pause()
    return await work.end()


async def prepare(work: Work) -> str:
    """The first phase of two; its caller sees to the second, which decides."""
    await work.run("BEGIN")
    if work.chance.random() < 0.2:
        # Streams of their own: those of the others would stand still with it.
        await work.publish(f"prepared-{work.chance.randrange(STREAM_COUNT)}")
    for _ in range(work.chance.choice((1, 1, 3))):
        await work.insert()
        await work.pause()
    await work.run(f"PREPARE TRANSACTION '{gid_of(work)}'")
    return UNKNOWN


async def vanish(work: Work) -> str:
    """Its connection is gone before it ends."""
    await work.run("BEGIN")
    await work.insert()
    await work.pause()
    work.connection.terminate()
    return ROLLED_BACK


def gid_of(work: Work) -> str:
    """The name of a prepared transaction."""
    return f"prepared {next(iter(work.stored))}"


KINDS: dict[Callable[[Work], Coroutine[object, object, str]], int] = {
    insert_alone: 10,
    insert_some: 8,
    roll_back: 46,
    use_savepoint: 12,
    use_exception_block: 5,
    draw_first: 9,
    copy: 2,
    publish_in_sql: 3,
    publish_within: 1,
    prepare: 3,
    vanish: 1,
}
