"""How often a session gives a sign of life, and how long silence lasts on either side."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

# What is left when the server has ended a silent session: for a standby's next look, and for its claim if
# that has to end a batch first. Half of it will do, unless the machine is busy.
_TAKEOVER_SECONDS = 1.0
_LONGEST_SILENCE = (2**31 - 1) / 1000
# However long a failover may take: who listens wants to know soon that nothing comes through.
_LONGEST_BEAT = 3.0
_LONGEST_ANSWER = 5.0


@dataclass(frozen=True, slots=True)
class Pace:
    """In seconds."""

    beat: float
    """From one sign of life to the next."""
    answer: float
    """After so long without an answer a connection counts as lost: before the server ends its session."""
    silence: float
    """After so long without a statement the server ends the session."""

    @classmethod
    def within(cls, failover_timeout: float) -> Self:
        """So that another instance has the locks of one that fell silent in this time.

        >>> Pace.within(10.0)
        Pace(beat=2.4, answer=4.4, silence=8.0)
        """
        silence = max(failover_timeout - _TAKEOVER_SECONDS, failover_timeout * 0.4)
        silence = min(silence, failover_timeout * 0.8, _LONGEST_SILENCE)
        return cls(
            beat=round(min(silence * 0.3, _LONGEST_BEAT), 3),
            answer=round(min(silence * 0.55, _LONGEST_ANSWER), 3),
            silence=round(silence, 3),
        )


@asynccontextmanager
async def patient_for(seconds: float) -> AsyncIterator[None]:
    """TimeoutError after so long, a part of which the event loop had to hear the answer.

    If it was the event loop that was held up, the answer is there already: a plain timeout would be over at
    the moment at which it could be heard.
    """
    loop = asyncio.get_running_loop()
    last = seconds / 10
    async with asyncio.timeout(None) as limit:
        ending = loop.call_later(seconds - last, lambda: limit.reschedule(loop.time() + last))
        try:
            yield
        finally:
            ending.cancel()
