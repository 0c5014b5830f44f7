"""Advisory locks by name: each bus has its own, whatever else is locked in the same database."""

import hashlib
import struct


def lock_key(schema: str, name: str) -> tuple[int, int]:
    """The two halves of the specification's key: four bytes each of the MD5 of bus and name.

    >>> lock_key("postbus", "mail")
    (-853472566, 1554846419)
    """
    digest = hashlib.md5(f"{schema}:{name}".encode(errors="surrogatepass"), usedforsecurity=False).digest()
    first, second = struct.unpack("!ii", digest[:8])
    return first, second


def batch_key(schema: str, subscriber_id: str) -> tuple[int, int]:
    """Held by every transaction that writes a checkpoint and more: a new owner knows whom to end by it."""
    # What no id may contain: a subscriber "mail:batch" is not to be taken for a batch of "mail".
    return lock_key(schema, f"{subscriber_id}\0batch")


def session_key(channel: str) -> int:
    """Held by every session of the bus that has this channel, in common: they know each other by it."""
    first, second = lock_key(channel, "\0session")
    return (first << 32) | (second & 0xFFFFFFFF)
