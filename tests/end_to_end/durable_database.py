"""What durable subscribers left in the database, seen from outside, and what they told the history."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.end_to_end.database import connect
from tests.end_to_end.history import History

KILLED = "killed"
EFFECTS = "CREATE TABLE IF NOT EXISTS effects (event_id TEXT NOT NULL, global_sequence INTEGER NOT NULL)"
INSERT_EFFECT = "INSERT INTO effects (event_id, global_sequence) VALUES (?, ?)"


def numbers(path: Path, pattern: str = "%") -> dict[str, int]:
    """The global sequence of every event by its id, in the order of the log."""
    with connect(path) as connection:
        return dict(
            connection.execute(
                "SELECT id, global_sequence FROM events WHERE type LIKE ? ORDER BY global_sequence",
                (pattern,),
            )
        )


def dead_letters(path: Path, subscriber_id: str) -> dict[str, list[str]]:
    """The unresolved dead letters of a subscriber: the errors by the id of the event."""
    with connect(path) as connection:
        rows = connection.execute(
            "SELECT event_id, error_history FROM event_bus_dlq "
            "WHERE subscriber_id = ? AND resolved_at IS NULL",
            (subscriber_id,),
        ).fetchall()
    return {event_id: json.loads(errors) for event_id, errors in rows}


def checkpoint(path: Path, subscriber_id: str) -> int:
    """Where it is; 0 if it has none."""
    with connect(path) as connection:
        row = connection.execute(
            "SELECT last_global_sequence FROM event_bus_checkpoints WHERE subscriber_id = ?", (subscriber_id,)
        ).fetchone()
    return 0 if row is None else int(row[0])


def effects(path: Path) -> list[str]:
    """The ids of the events that took effect in a transaction, in the order of its inserts."""
    with connect(path) as connection:
        return [row[0] for row in connection.execute("SELECT event_id FROM effects ORDER BY rowid")]


def check_all_handled(path: Path, history: History, subscriber_id: str, handled: Iterable[str]) -> None:
    """Every event was handled or is a dead letter, and its checkpoint is at the end of the log."""
    stored, dead = numbers(path), dead_letters(path, subscriber_id)
    lost = stored.keys() - set(handled) - dead.keys()
    assert not lost, f"{subscriber_id} lost {[stored[each] for each in lost]}\n{history.story(lost)}"
    assert checkpoint(path, subscriber_id) == max(stored.values())


def check_acknowledged_stored(path: Path, history: History) -> None:
    """What publish returned for is in the log."""
    missing = history.acknowledged() - numbers(path).keys()
    assert not missing, f"acknowledged and not stored\n{history.story(missing)}"


def check_order(path: Path, history: History, subscriber_id: str, handled: Iterable[str]) -> None:
    """The first delivery of every event came in the order of the log."""
    stored = numbers(path)
    first = list(dict.fromkeys(handled))
    disorder = [each for each, then in itertools.pairwise(first) if stored[each] > stored[then]]
    assert not disorder, f"{subscriber_id} got events too early\n{history.story(disorder)}"


def check_effects_once(path: Path, history: History, subscriber_id: str) -> None:
    """Every event took effect exactly once, in order; a dead letter not at all."""
    found = effects(path)
    twice = {each for each, count in Counter(found).items() if count > 1}
    assert not twice, f"{subscriber_id} took effect twice\n{history.story(twice)}"
    check_all_handled(path, history, subscriber_id, found)
    check_order(path, history, subscriber_id, found)
    undead = set(found) & dead_letters(path, subscriber_id).keys()
    assert not undead, f"{subscriber_id} gave up what took effect\n{history.story(undead)}"


def check_repetitions(history: History, subscriber_id: str, most: int) -> None:
    """In one life of its process nothing comes twice; after a kill at most so many events come again."""
    lives = _lives(history, subscriber_id)
    later: set[str] = set()
    for life in reversed(lives):
        here = set(life)
        twice = [each for each, count in Counter(life).items() if count > 1]
        assert not twice, f"{subscriber_id} got events twice in one life\n{history.story(twice)}"
        again = here & later
        assert len(again) <= most, (
            f"{subscriber_id} got {len(again)} events again after one kill, at most {most} may\n"
            f"{history.story(again)}"
        )
        later |= here


def _lives(history: History, subscriber_id: str) -> list[list[str]]:
    lives: list[list[str]] = [[]]
    for what, event_id in history.lines():
        if what == KILLED:
            lives.append([])
        elif what == subscriber_id:
            lives[-1].append(event_id)
    return lives
