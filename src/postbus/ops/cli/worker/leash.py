"""What ties an instance to its supervisor: a pipe that ends when the supervisor says stop, or ends itself."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

_STDIN = 0
GRACE_SECONDS = 5.0
"""How much longer than its shutdown_timeout a bus may take until its process is ended by force."""
# A supervisor that is still there does it, and tells of it; only after that the process ends itself.
_AFTER_SUPERVISOR = 2.0


class Leash:
    """Watches standard input in a thread: it must work while the application is imported, or hangs."""

    def __init__(self) -> None:
        # Not as standard input: processes that the application starts would have it too.
        self._pipe = os.dup(_STDIN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, _STDIN)
        os.close(nothing)
        self._guard = threading.Lock()
        self._ask: Callable[[], object] | None = None
        self._shutdown_timeout: Callable[[], float] = lambda: 0.0
        threading.Thread(target=self._watch, name="postbus leash", daemon=True).start()

    def attach(self, stop: asyncio.Event, shutdown_timeout: Callable[[], float]) -> None:
        """From now on the end of the pipe asks for a clean shutdown, which may take so many seconds."""
        loop = asyncio.get_running_loop()
        with self._guard:
            self._ask, self._shutdown_timeout = lambda: loop.call_soon_threadsafe(stop.set), shutdown_timeout

    def _watch(self) -> None:
        while os.read(self._pipe, 1024):
            pass
        with self._guard:
            if self._ask is None:
                # Nothing has begun, so there is nothing to finish.
                os._exit(0)
        # A closed event loop has come to its end already.
        with contextlib.suppress(RuntimeError):
            self._ask()
        patience = self._shutdown_timeout() + GRACE_SECONDS + _AFTER_SUPERVISOR
        time.sleep(min(patience, threading.TIMEOUT_MAX))
        os._exit(1)
