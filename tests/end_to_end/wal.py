"""SQLite's write-ahead log as bytes: where its commits end, and what a power cut may do to the rest."""

import random
import struct
from pathlib import Path

_HEADER_SIZE = 32
_FRAME_HEADER_SIZE = 24
# In the shared memory: which generation of the log it is about, how many frames of that are committed, how
# many a checkpoint has copied into the database, and how many it meant to.
_COMMITTED_AT = 16
_SALT_AT = 32
_BACKFILLED_AT = 96
_ATTEMPTED_AT = 128


class Log:
    """The frames of a log's present generation; those of an earlier one may follow in the file."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes() if path.exists() else b""
        self.page_size = 0
        self.salt: list[int] = []
        self.pages: list[int] = []
        if len(self.content) >= _HEADER_SIZE:
            self._read_frames()

    def _read_frames(self) -> None:
        _, _, self.page_size, _, *self.salt, _, _ = struct.unpack(">8I", self.content[:_HEADER_SIZE])
        for start in range(_HEADER_SIZE, len(self.content), self._frame_size):
            frame = self.content[start : start + self._frame_size]
            if len(frame) < self._frame_size:
                break
            page, _, *frame_salt, _, _ = struct.unpack(">6I", frame[:_FRAME_HEADER_SIZE])
            if frame_salt != self.salt:
                break
            self.pages.append(page)

    @property
    def _frame_size(self) -> int:
        return _FRAME_HEADER_SIZE + self.page_size

    def end_of_frame(self, number: int) -> int:
        """The byte after the so many first frames."""
        return _HEADER_SIZE + number * self._frame_size if number else 0


class SharedMemory:
    """What the connections tell each other about the log.

    SQLite counts a frame as committed after it has synced the log that far, and it
    syncs the log before a checkpoint copies from it.
    """

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.salt = list(struct.unpack_from(">2I", content, _SALT_AT))
        self.committed, self.backfilled, self.attempted = (
            struct.unpack_from("=I", content, at)[0] for at in (_COMMITTED_AT, _BACKFILLED_AT, _ATTEMPTED_AT)
        )


def damage_tail(content: bytes, synced_size: int, rng: random.Random) -> dict[str, bytes]:
    """What may be left of a log of which only the first bytes were synced."""
    tail_size = len(content) - synced_size
    cut = synced_size + rng.randint(0, tail_size)
    flipped, garbled = bytearray(content), bytearray(content)
    for _ in range(rng.randint(1, 20) if tail_size else 0):
        flipped[synced_size + rng.randrange(tail_size)] ^= 1 << rng.randrange(8)
    for start in range(synced_size, len(content), 512):
        # A disk writes whole sectors, in any order.
        if rng.random() < 0.5:
            size = min(512, len(content) - start)
            garbled[start : start + size] = rng.choice([bytes(size), rng.randbytes(size)])
    return {
        "whole": content,
        "cut to what was synced": content[:synced_size],
        f"cut at byte {cut}": content[:cut],
        f"zeros from byte {cut}": content[:cut] + bytes(len(content) - cut),
        "bits flipped": bytes(flipped),
        "sectors missing": bytes(garbled),
    }
