"""How far all parts of a subscriber are, here and elsewhere: from their loops, or from their rows."""

from postbus.delivery.parts.loops import PartLoops
from postbus.delivery.service import Service
from postbus.events import Checkpoint, Gap, GlobalSequence, Layout, LogPosition


class PartProgress:
    """The least of what all parts have done; what is known of others is as old as the last look at them."""

    def __init__(self, loops: PartLoops) -> None:
        self._loops = loops
        self.layout: Layout | None = None
        """The present layout, as it was last seen."""

    @property
    def checkpoint(self) -> GlobalSequence | None:
        """Up to where all parts have processed and written everything; None: not known."""
        if self.layout is None:
            return None
        return min(self._checkpoint_of(*part) for part in enumerate(self.layout.parts))

    @property
    def position(self) -> GlobalSequence:
        """Up to where all parts have processed everything."""
        if self.layout is None:
            return GlobalSequence(0)
        return min(self._position_of(*part) for part in enumerate(self.layout.parts))

    def has_written(self, sequence: GlobalSequence) -> bool:
        """Whether this number was processed and that is written, whichever part it is in."""
        if self.layout is None:
            return False
        return all(self._has_written(*part, sequence) for part in enumerate(self.layout.parts))

    @property
    def missing(self) -> tuple[Gap, ...]:
        """Numbers that were not in the log when it was read for one of the parts."""
        rows = () if self.layout is None else self.layout.parts
        return (*self._loops.missing, *(gap for row in rows for gap in row.open))

    def _checkpoint_of(self, index: int, row: Checkpoint) -> GlobalSequence:
        loop = self._loop(index)
        written = None if loop is None else loop.checkpoint
        return row.position if written is None else written

    def _position_of(self, index: int, row: Checkpoint) -> GlobalSequence:
        loop = self._loop(index)
        return row.position if loop is None else max(loop.position, row.position)

    def _has_written(self, index: int, row: Checkpoint, sequence: GlobalSequence) -> bool:
        loop = self._loop(index)
        if loop is not None and loop.has_written(sequence):
            return True
        head = row.position if row.head is None else row.head
        return LogPosition(head, row.open).has_passed(sequence)

    def _loop(self, index: int) -> Service | None:
        """What serves the part here; a whole one may have an outbox to work off behind its checkpoint."""
        assert self.layout is not None, "asked only if it is known"
        return None if self.layout.partitions == 1 else self._loops.get(index)
