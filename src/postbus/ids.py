"""Event ids: time-ordered UUIDs, version 7 of RFC 9562."""

import os
import random
import threading
import time

_TAIL_BITS = 74
_LOW_MASK = (1 << 62) - 1
_STEP_MASK = (1 << 48) - 1

# Our own generator: a user's random.seed() must not make two processes give the same ids.
# It need not be cryptographic, because an event id is a name and no secret.
_random = random.Random()
_lock = threading.RLock()
# The latest id without its fixed bits: 48 bits of milliseconds and 74 bits of tail.
_latest = 0


def new_event_id() -> str:
    """A UUIDv7, greater than every one this process made before, even if the clock was set back.

    >>> new_event_id() < new_event_id()
    True
    """
    global _latest
    tail = _random.getrandbits(_TAIL_BITS)
    value = time.time_ns() // 1_000_000 << _TAIL_BITS | tail
    # No call within: a signal handler or a finalizer that makes an id can't come in between.
    with _lock:
        if value <= _latest:
            # The same millisecond, or an earlier one. Should the tail overflow, then the
            # millisecond is one too high, which is still in order.
            value = _latest + (tail & _STEP_MASK) + 1
        _latest = value
    high, low = value >> 62, value & _LOW_MASK
    digits = f"{(high >> 12 << 16 | 0x7000 | high & 0xFFF) << 64 | 0x2 << 62 | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _begin_anew_in_child() -> None:
    # A forked child inherits the generator's state and the latest id, and perhaps a lock that
    # another thread of its parent holds: all three have to part from the parent's.
    global _lock, _latest
    _lock = threading.RLock()
    _random.seed()
    _latest += _random.getrandbits(_TAIL_BITS - 1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew_in_child)
