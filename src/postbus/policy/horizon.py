"""WriterHorizon: up to which number of the log nothing can appear any more, by proof and not by a clock.

A sequence number is taken before its transaction commits. nextval() locks the sequence for the whole of
that transaction, prepared or not, so the holders of this lock are exactly those that can still publish a
number already handed out. A sample lists them, and the highest number that was visible before that.

Why it is sound: suppose that a snapshot taken after a sample lacks a number up to `settled`, and that the
number appears later. Either its writer was not listed. Then it had ended, and the snapshot would show the
number; or it drew the number later, and then it is above `high`. Or its writer was listed. Then some
sample was the first to list it, and it drew all its numbers after the sample before that one: they are
above that sample's `high`, which was noted as the writer's lowest, and `settled` stays below.
"""

from postbus.errors import UnsoundLogError
from postbus.events import GlobalSequence, WriterSample

# A transaction's name is "backend/number". The number is 0 once it has ended and only its locks are left.
_ENDED = "/0"
# A prepared one has no backend once its server has restarted: a new name for a writer that may be old.
_NO_BACKEND = "-1/"


class WriterHorizon:
    """Every number up to `settled` is visible to each snapshot taken from now on, or dead for ever.

    Samples count in the order in which they were taken. What a sample settles may be applied to what was
    read after it, never to what was read before: a number may have become visible in between.

    >>> horizon = WriterHorizon()
    >>> horizon.observe(WriterSample("a", high=8, holders=("3/41",)))  # 3/41 may own any number
    0
    >>> horizon.observe(WriterSample("a", high=9, holders=("3/41", "4/17")))  # 4/17 only one above 8
    0
    >>> horizon.observe(WriterSample("a", high=12, holders=("4/17",)))
    8
    >>> horizon.observe(WriterSample("a", high=12, holders=()))
    12
    """

    __slots__ = ("_high", "_lowest", "_server", "_settled")

    def __init__(self) -> None:
        self._server: str | None = None
        self._settled = self._high = 0
        # For each open writer a number up to which it owns nothing.
        self._lowest: dict[str, int] = {}

    @property
    def settled(self) -> GlobalSequence:
        """The highest number up to which every one is decided, as far as is known."""
        return GlobalSequence(self._settled)

    @property
    def server(self) -> str | None:
        """Which start of which server it is true of; None before the first sample."""
        return self._server

    def settled_on(self, server: str | None) -> GlobalSequence:
        """What is settled on this server: nothing, unless the samples came from it."""
        return GlobalSequence(self._settled if server == self._server else 0)

    def forget(self) -> None:
        """Start from nothing: a server that came back may hand out numbers a second time."""
        self._server, self._settled, self._high, self._lowest = None, 0, 0, {}

    def observe(self, sample: WriterSample) -> GlobalSequence:
        """What is settled now. UnsoundLogError (and nothing changes): the log went back."""
        if sample.server != self._server:
            self.forget()
            self._server = sample.server
        self._refuse_a_log_that_went_back(sample)
        writers = [holder for holder in sample.holders if not holder.endswith(_ENDED)]
        self._lowest = {writer: self._find_lowest(writer) for writer in writers}
        self._high = sample.high
        self._settled = max(self._settled, min([self._high, *self._lowest.values()]))
        return self.settled

    def _find_lowest(self, writer: str) -> int:
        if writer in self._lowest:
            return self._lowest[writer]
        # A writer of a new name may be one that was known by another before it was prepared.
        return self._settled if writer.startswith(_NO_BACKEND) else self._high

    def _refuse_a_log_that_went_back(self, sample: WriterSample) -> None:
        if sample.high < self._high:
            raise UnsoundLogError(
                f"the log went back: its highest number is {sample.high} and was {self._high}; expected it "
                "only to grow. TRUNCATE … RESTART IDENTITY, a restored dump or deleted events do this, and "
                "subscribers would pass over numbers that are used again. Stop every bus on this log, set "
                "last_global_sequence in event_bus_checkpoints to where each subscriber shall go on "
                "(0: from the beginning), and start again"
            )
