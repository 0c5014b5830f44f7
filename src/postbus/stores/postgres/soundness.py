"""Refuses a log on which a subscriber could pass over an event that is still being written.

A missing number is closed by looking at who still holds the sequence's lock. That is proof only where every
number is drawn by the insert itself, from one counter, on this server.
"""

from collections.abc import Iterator

import asyncpg

from postbus.errors import MigrationNeededError, UnsoundLogError
from postbus.stores.named_queries import load_queries
from postbus.stores.postgres.pool import Connection
from postbus.stores.postgres.schema_name import quoted_schema

_QUERIES = load_queries("postbus.stores.postgres", "soundness.sql")


async def check_sound(connection: Connection, schema: str) -> None:
    """UnsoundLogError with every fault that was found, why it matters, and its repair."""
    log = await connection.fetchrow(_QUERIES["describe_log"], schema)
    assert log is not None
    if log["table_kind"] is None or log["cache"] is None:
        raise MigrationNeededError(
            f"schema {schema!r} has no table events with its sequence; run `postbus migrate`"
        )
    table = f"{quoted_schema(schema)}.events"
    sequence = f"{quoted_schema(schema)}.events_global_sequence_seq"
    faults = [*_faults_of_sequence(log, table, sequence), *_faults_of_table(log, table, sequence)]
    if log["may_read_sequence"] and (fault := await find_numbers_that_come_again(connection, schema)):
        faults.append(fault)
    if log["may_read_subscriptions"] and await connection.fetchval(_QUERIES["subscriptions_to_log"], schema):
        faults.append(
            "a logical subscription writes into events, and its rows come without drawing a number here: run "
            f"the bus on the publishing server, or take {table} out of the subscription"
        )
    if faults:
        raise UnsoundLogError(f"an event of schema {schema!r} could be passed over: {'; '.join(faults)}")


async def find_numbers_that_come_again(connection: Connection, schema: str) -> str | None:
    """What is wrong if the sequence is behind the events, as after a setval()."""
    query = _QUERIES["numbers_in_use"].replace("{schema}", quoted_schema(schema))
    numbers = await connection.fetchrow(query)
    assert numbers is not None
    highest, handed_out = numbers["highest"], numbers["handed_out"]
    if highest <= handed_out:
        return None
    sequence = f"{quoted_schema(schema)}.events_global_sequence_seq"
    return (
        f"events has number {highest} and the sequence has handed out numbers up to {handed_out}, so "
        f"that some will come again: SELECT setval({_literal(sequence)}, {highest})"
    )


def _faults_of_sequence(log: asyncpg.Record, table: str, sequence: str) -> Iterator[str]:
    if log["cache"] != 1:
        yield (
            f"the sequence has CACHE {log['cache']}, so that a session keeps numbers and uses them later "
            f"without a lock: ALTER SEQUENCE {sequence} CACHE 1, then end the sessions that wrote events"
        )
    if log["increment"] != 1:
        yield (
            f"the sequence has INCREMENT {log['increment']}, so that numbers are left out or go down: "
            f"ALTER SEQUENCE {sequence} INCREMENT 1"
        )
    if log["cycles"]:
        yield (
            "the sequence has CYCLE, so that numbers may come again below those already read: "
            f"ALTER SEQUENCE {sequence} NO CYCLE"
        )
    if log["sequence_persistence"] != "p":
        yield (
            "the sequence is not permanent, so that after a crash it hands out numbers again: "
            f"ALTER SEQUENCE {sequence} SET LOGGED"
        )
    if not log["is_owned"]:
        yield (
            "the sequence does not belong to events.global_sequence, so that it may number other things too: "
            f"ALTER SEQUENCE {sequence} OWNED BY {table}.global_sequence"
        )
    if not log["may_read_sequence"]:
        yield (
            "this role may not read the sequence, so that it can't be seen whether numbers come again: "
            f"GRANT SELECT, USAGE ON SEQUENCE {sequence} TO {log['role']}"
        )


def _faults_of_table(log: asyncpg.Record, table: str, sequence: str) -> Iterator[str]:
    if log["is_standby"]:
        yield (
            "the server is a standby, where events come without the lock that shows their writers at work: "
            "connect to the primary"
        )
    if log["table_kind"] != "r":
        yield (
            f"events is no plain table (relkind {log['table_kind']!r}), so that rows can come into it "
            "without drawing a number: copy them into a table that `postbus migrate` makes in another schema"
        )
    if log["table_persistence"] != "p":
        yield f"events is not permanent, so that a crash empties it: ALTER TABLE {table} SET LOGGED"
    if log["hides_rows"]:
        yield (
            "row-level security may hide events from this role, and a hidden event looks like a number that "
            f"nobody used: ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, or use a role with BYPASSRLS"
        )
    if not log["draws_numbers"]:
        yield (
            "events.global_sequence does not draw its number from the sequence by default, so that a number "
            f"may be used long after it was drawn: ALTER TABLE {table} ALTER global_sequence SET DEFAULT "
            f"nextval({_literal(sequence)})"
        )


def _literal(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"
