"""Which part of a partitioned subscriber an event is in, and how many parts each instance runs.

The parts are spread evenly over the instances. Nobody is in charge: each instance looks who is there and
who has which part, and comes to its own share of them by the same rule as all others.
"""

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache

from postbus.events import Event, Part, SubscriberId


def part_of(key: str, count: int) -> int:
    """The index of the part that a stream is in, or an event without one by its id; PostgreSQL agrees.

    >>> part_of("order-42", 8), part_of("order-43", 8), part_of("order-42", 1)
    (4, 1, 0)
    """
    return _hash(key) % count


@lru_cache(maxsize=16_384)
def _hash(key: str) -> int:
    # What can't be encoded can't be stored: no event has such a key.
    digest = hashlib.md5(key.encode(errors="surrogatepass"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def part_of_event(event: Event, count: int) -> int:
    """The index of the part that an event is in."""
    return part_of(event.id if event.stream_id is None else event.stream_id, count)


def part_id(subscriber_id: str, part: Part) -> SubscriberId:
    """What the checkpoint and the lock of a part go by; that of the only part is the subscriber's own.

    >>> part_id("mail", Part(3, 8)), part_id("mail", Part(0, 1))
    ('mail#3/8', 'mail')
    """
    if part.count == 1:
        return SubscriberId(subscriber_id)
    return SubscriberId(f"{subscriber_id}#{part.index}/{part.count}")


def quota(rank: int, member_count: int, count: int) -> int:
    """How many of *count* parts an instance runs; the first ones run what is left over.

    >>> [quota(rank, 3, 8) for rank in range(3)]
    [3, 3, 2]
    """
    return count // member_count + (rank < count % member_count)


def fair_share(me: int, members: Sequence[int], holders: Sequence[int | None]) -> int:
    """How many parts an instance runs, of those whose *holders* these are (None: nobody runs it).

    What is left over stays with those who have the most, so that no part moves without need.

    >>> fair_share(3, members=[1, 2, 3], holders=[1, 1, 1, 1, 2, 2, 2, 2])
    2
    """
    ranked = sorted({*members, me}, key=lambda member: (-holders.count(member), member))
    return quota(ranked.index(me), len(ranked), len(holders))


def to_take(me: int, members: Sequence[int], holders: Sequence[int | None]) -> list[int]:
    """The parts that an instance may try for: those that are free, if it has less than its share.

    Each begins to look somewhere else, so that they do not all try for the same one; see fair_share().

    >>> to_take(3, members=[1, 2, 3], holders=[1, 1, 1, None, 2, 2, None, 2])
    [6, 3]
    """
    if holders.count(me) >= fair_share(me, members, holders):
        return []
    ranked = sorted({*members, me})
    first = ranked.index(me) * len(holders) // len(ranked)
    order = [*range(first, len(holders)), *range(first)]
    return [index for index in order if holders[index] is None]


def to_give_up(held: Collection[int], share: int) -> list[int]:
    """The parts that an instance with too many of them lets go: no more than it must.

    >>> to_give_up([0, 3, 5, 6], share=3)
    [6]
    """
    return sorted(held)[share:]
