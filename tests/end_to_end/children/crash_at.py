"""One of everything a bus does, ended by os._exit at the k-th call of the database.

Lines in: the database, the history, k, "before" or "after" that call. Lines out: the exit code;
0 means that there was no k-th call, and the scenario came to its end. SQLite is the real one: its
connection only counts.
"""

import asyncio
import itertools
import logging
import os
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from postbus.stores.lent_connection import LendableConnection, LentConnection
from tests.end_to_end.children.handlers import make_bus
from tests.end_to_end.history import ACKNOWLEDGED, History

CRASHED = 77
RETRIED = "retried"
BATCH = ("ok.batch", "flaky.batch", "poison.batch")


class CrashingConnection(LendableConnection):
    """Ends the process at the k-th call of any connection."""

    k = 0
    when = "before"
    calls = itertools.count(1)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        # The look-out for other processes comes as often as time lets it; all else comes in turn.
        if sql == "PRAGMA data_version":
            return super().execute(sql, *parameters)
        return self._crash_around(lambda: super(CrashingConnection, self).execute(sql, *parameters))

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        return self._crash_around(lambda: super(CrashingConnection, self).executemany(sql, parameters))

    def _crash_around(self, call: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        is_kth = next(self.calls) == self.k
        if is_kth and self.when == "before":
            os._exit(CRASHED)
        cursor = call()
        if is_kth:
            os._exit(CRASHED)
        return cursor


@contextmanager
def crashing(plain: type[CrashingConnection]) -> Iterator[None]:
    """Have every connection of the bus count, also while a handler has it."""
    lent = type("LentCrashingConnection", (LentConnection, plain), {})
    with (
        mock.patch("postbus.stores.sqlite.connection.LendableConnection", plain),
        mock.patch("postbus.stores.lent_connection.LendableConnection", plain),
        mock.patch("postbus.stores.lent_connection.LentConnection", lent),
    ):
        yield


async def do_everything(path: str, history: History) -> None:
    bus = make_bus(path, history)
    await bus.start()
    for event_type in ("ok.waited", "plain.waited", "flaky.waited"):
        history.note(ACKNOWLEDGED, await bus.publish(event_type))
    dead_letter = await bus.publish("poison.waited")
    history.note(ACKNOWLEDGED, dead_letter)
    history.note(ACKNOWLEDGED, await bus.publish("ok.unwaited", wait=False))
    history.note(ACKNOWLEDGED, await bus.publish("ok.given", event_id=f"given-{os.getpid()}"))
    batch = {"batch": "only", "size": len(BATCH)}
    history.note(ACKNOWLEDGED, *await bus.publish_many([(event_type, batch) for event_type in BATCH]))
    await bus.idle()
    assert (await bus.dlq.list()).total == 2
    await bus.dlq.retry(dead_letter)
    history.note(RETRIED, dead_letter)
    await bus.idle()
    await bus.dlq.retry_all()
    await bus.shutdown()


def crash(path: str, history: str, k: str, when: str) -> int:
    """The exit code of a process that goes through the scenario."""
    CrashingConnection.k, CrashingConnection.when = int(k), when
    with crashing(CrashingConnection):
        asyncio.run(do_everything(path, History(Path(history))))
    return 0


def crash_in_fork(arguments: str) -> int:
    """Its exit code. This process has opened nothing: a fork of it is as good as a new one, and quicker."""
    process = os.fork()
    if process == 0:
        exit_code = 1
        try:
            exit_code = crash(*arguments.split())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(exit_code)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    logging.getLogger("postbus").setLevel(logging.CRITICAL)
    for line in sys.stdin:
        print(crash_in_fork(line), flush=True)
