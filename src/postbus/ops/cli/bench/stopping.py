"""The signals that end a benchmark."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

# The last one is sent by a terminal that is closed.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Whether somebody wants the run to end.

    A second signal changes nothing: only cleaning up is left to do, and takes a moment.
    """

    def __init__(self) -> None:
        self._signal_number = 0

    def is_wanted(self) -> bool:
        """Since the first signal."""
        return self._signal_number > 0

    @property
    def exit_code(self) -> int:
        """What a shell expects of a command that a signal has ended."""
        return 128 + self._signal_number

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Listen to the signals, except those that somebody has us ignore, as nohup does."""
        before = {
            number: signal.signal(number, self._on_signal)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal_number = self._signal_number or number
