"""Events that have appeared where a subscriber found numbers missing.

Beyond an open gap a subscriber goes on: that it has come to a number does not mean that it had everything
below. Whoever waits for all that is in the log waits for what has filled its gaps as well.
"""

from collections.abc import Sequence

from postbus.delivery.deliveries import numbers_of
from postbus.delivery.service import Service
from postbus.events import Gap, GlobalSequence, LogPosition
from postbus.policy.gaps import merge_gaps
from postbus.policy.patterns import type_filter
from postbus.ports import EventLog


async def find_filled(
    log: EventLog, service: Service, head: GlobalSequence, *, here: bool = False
) -> Sequence[GlobalSequence]:
    """Numbers up to the head which the service lacks although they are in the log: some, if there are any."""
    gaps = merge_gaps(Gap(gap.first, min(gap.last, head)) for gap in service.missing(here=here))
    if not gaps:
        return ()
    # What follows the head is not asked for, but a page has some of it.
    page = await log.read(LogPosition(head, gaps), 1, type_filter(service.subscriber.patterns))
    return [number for number in numbers_of(page.events) if number <= head]


def is_missing(service: Service, number: GlobalSequence, *, here: bool = False) -> bool:
    """Whether the service still lacks this number."""
    return any(gap.first <= number <= gap.last for gap in service.missing(here=here))
