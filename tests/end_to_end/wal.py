"""SQLite's write-ahead log as bytes: where its commits end, and what a power cut may do to the rest."""

import random
import struct
from pathlib import Path

_HEADER_SIZE = 32
_FRAME_HEADER_SIZE = 24
# Of the shared-memory file: how many frames a checkpoint has copied, and how many it meant to.
_BACKFILLED_AT = 96
_ATTEMPTED_AT = 128


class Log:
    """The frames of a log's present generation; those of an earlier one may follow in the file."""

    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes() if path.exists() else b""
        self.page_size = 0
        self.pages: list[int] = []
        self.commit_ends: list[int] = []
        if len(self.content) >= _HEADER_SIZE:
            self._read_frames()

    def _read_frames(self) -> None:
        _, _, self.page_size, _, *salt, _, _ = struct.unpack(">8I", self.content[:_HEADER_SIZE])
        for start in range(_HEADER_SIZE, len(self.content), self._frame_size):
            frame = self.content[start : start + self._frame_size]
            if len(frame) < self._frame_size:
                break
            page, size_after_commit, *frame_salt, _, _ = struct.unpack(">6I", frame[:_FRAME_HEADER_SIZE])
            if frame_salt != salt:
                break
            self.pages.append(page)
            if size_after_commit:
                self.commit_ends.append(start + self._frame_size)

    @property
    def _frame_size(self) -> int:
        return _FRAME_HEADER_SIZE + self.page_size

    def end_of_frame(self, number: int) -> int:
        """The byte after the so many first frames."""
        return _HEADER_SIZE + number * self._frame_size if number else 0


def checkpoint_progress(shared_memory: Path) -> tuple[int, int]:
    """How many frames were copied into the database for certain, and how many may have been."""
    content = shared_memory.read_bytes()
    backfilled, attempted = (
        struct.unpack_from("=I", content, at)[0] for at in (_BACKFILLED_AT, _ATTEMPTED_AT)
    )
    return backfilled, attempted


def damage_tail(content: bytes, safe_size: int, rng: random.Random) -> dict[str, bytes]:
    """What may be left of a log of which only the first bytes were synced."""
    tail_size = len(content) - safe_size
    cut = safe_size + rng.randint(0, tail_size)
    flipped, garbled = bytearray(content), bytearray(content)
    for _ in range(rng.randint(1, 20) if tail_size else 0):
        flipped[safe_size + rng.randrange(tail_size)] ^= 1 << rng.randrange(8)
    for start in range(safe_size, len(content), 512):
        # A disk writes whole sectors, in any order.
        if rng.random() < 0.5:
            size = min(512, len(content) - start)
            garbled[start : start + size] = rng.choice([bytes(size), rng.randbytes(size)])
    return {
        "whole": content,
        "cut to what was synced": content[:safe_size],
        f"cut at byte {cut}": content[:cut],
        f"zeros from byte {cut}": content[:cut] + bytes(len(content) - cut),
        "bits flipped": bytes(flipped),
        "sectors missing": bytes(garbled),
    }
