"""What a durable subscriber is: who it is, what it wants, and how it is to be served."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from postbus.config import AnyCheckpointMode, RetryPolicy
from postbus.delivery.receivers import Receiver, TransactionalReceiver
from postbus.errors import InvalidConfigError
from postbus.events import GlobalSequence, LogPosition, Part, SubscriberId
from postbus.policy.partitions import part_id
from postbus.ports import EventLog
from postbus.storable import LARGEST_NUMBER

StartFrom = str | int | datetime
Mode = Literal["ordered", "competing"]

DEFAULT_CONCURRENCY = 10
MOST_PARTITIONS = 1024

_EXPECTED_START = (
    '"beginning", "now", a global sequence of 0 or more that a database can hold, '
    "or an aware datetime that UTC can name"
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Subscriber:
    """A subscription that outlives the process."""

    id: SubscriberId
    patterns: tuple[str, ...]
    receiver: Receiver | TransactionalReceiver
    retry: RetryPolicy
    timeout: float
    start_from: StartFrom
    checkpoint_mode: AnyCheckpointMode
    mode: Mode = "ordered"
    partitions: int = 1
    concurrency: int = DEFAULT_CONCURRENCY
    """How many events a worker has in hand at once, where there are competing ones."""
    part: Part | None = None
    """Which part of a subscriber this is, if it is one: its checkpoint and its lock go by its own id."""
    whole_id: SubscriberId | None = None
    """The id of the subscriber that this is a part of."""

    @property
    def known_as(self) -> SubscriberId:
        """The id that the user gave: dead letters go by it."""
        return self.id if self.whole_id is None else self.whole_id


def split(subscriber: Subscriber, part: Part) -> Subscriber:
    """One part of a subscriber; the only one is the subscriber itself."""
    if part.count == 1:
        return replace(subscriber, partitions=1)
    return replace(
        subscriber,
        id=part_id(subscriber.id, part),
        part=part,
        whole_id=subscriber.id,
        receiver=subscriber.receiver.alone(is_split=subscriber.partitions > 1),
    )


def check_start_from(start_from: object) -> StartFrom:
    """Refuse what is no place to start from."""
    if isinstance(start_from, bool) or not isinstance(start_from, str | int | datetime):
        raise InvalidConfigError("start_from", start_from, _EXPECTED_START)
    if isinstance(start_from, str) and start_from not in ("beginning", "now"):
        raise InvalidConfigError("start_from", start_from, _EXPECTED_START)
    if isinstance(start_from, int) and not 0 <= start_from <= LARGEST_NUMBER:
        raise InvalidConfigError("start_from", start_from, _EXPECTED_START)
    if isinstance(start_from, datetime):
        return _in_utc(start_from)
    return start_from


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise InvalidConfigError("start_from", moment, _EXPECTED_START)
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidConfigError("start_from", moment, _EXPECTED_START) from error


async def find_start(start_from: StartFrom, log: EventLog, now: GlobalSequence) -> LogPosition:
    """The position of a subscriber that has no checkpoint yet; *now* is where the log was when it began."""
    if isinstance(start_from, datetime):
        # What happened since may have a number below, of a transaction that is not at its end yet.
        return await log.now(await log.position_at(start_from))
    if start_from == "now":
        return await log.now(now)
    return LogPosition(GlobalSequence(start_from if isinstance(start_from, int) else 0))
