"""Wakes the other processes on the same file, so that they need not wait for their next poll.

A process that listens has a socket in a folder beside the database; who has stored events sends
an empty datagram to all of them. Polling goes on beside it: a wake-up that gets lost costs a few
milliseconds and nothing else, and so does everything that goes wrong here.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

logger = logging.getLogger("postbus")

# The address of a socket has 104 to 108 bytes in all, and the name in the folder needs its share.
_LONGEST_FOLDER = 80
# Every call of the system lets go of the GIL, and beside a busy event loop it takes milliseconds to get
# it back: so a process that has just begun to listen may be found only this much later.
_LOOK_SECONDS = 0.1
# Two changes of a folder within one tick of its clock look like one; the coarsest clocks tick every 2 s.
_TICK_NANOSECONDS = 2_000_000_000
# A socket refuses datagrams for an instant after its file has appeared.
_NEWBORN_SECONDS = 2.0
_BIND_ATTEMPTS = 10
# More than a socket holds, so that one turn empties it, and yet an end to it whatever the others send.
_MOST_AT_ONCE = 1_000

# A forked child shares the parent's socket and would keep it alive beyond the parent's death.
_all_wake_ups: "weakref.WeakSet[FileWakeUps]" = weakref.WeakSet()


class FileWakeUps:
    """Wake-ups between the processes that share one database. Nothing raises: polling remains."""

    def __init__(self, database: Path) -> None:
        self._folder = Path(f"{os.path.realpath(database)}-wake")
        self._guard = threading.Lock()
        self._listener: _Listener | None = None
        self._own_name: str | None = None
        self._sender: socket.socket | None = None
        self._names: set[str] = set()
        # When the folder had changed before it was listed; None: list it again.
        self._listed_change: int | None = None
        self._looked_at = -_LOOK_SECONDS
        _all_wake_ups.add(self)

    @property
    def is_listening(self) -> bool:
        """Whether others can wake this process."""
        return self._listener is not None

    def listen(self, on_wake_up: Callable[[], None]) -> None:
        """Call it in this event loop when others have stored events, once for many. Replaces the last one."""
        self._stop_listening()
        # Known before there is a socket, so that the writer's thread never sends to it.
        self._own_name = f"{os.getpid()}-{secrets.token_hex(4)}"
        try:
            self._listener = _Listener(self._folder, self._own_name, on_wake_up)
        except OSError as error:
            logger.debug("nobody can wake this process through %s, it only polls: %s", self._folder, error)

    def announce(self) -> None:
        """Wake the others: this process has committed events. Called in one thread, the writer's."""
        try:
            self._look_who_listens()
            others = self._names - {self._own_name}
            if others:
                self._send(others)
        except OSError as error:
            logger.debug("can't wake other processes through %s, they only poll: %s", self._folder, error)

    def close(self) -> None:
        """Listen and announce no more. Idempotent; safe from any thread, the writer's being over."""
        self._stop_listening()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def forget_in_child(self) -> None:
        """Leave to the parent what is the parent's. Called after a fork."""
        self._guard = threading.Lock()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.socket.close()

    def _stop_listening(self) -> None:
        with self._guard:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
            # The last one leaves nothing behind.
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def _look_who_listens(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at != self._listed_change:
                # Asked before listing: what comes while we list must not be taken for listed.
                is_over = abs(time.time_ns() - changed_at) > _TICK_NANOSECONDS
                self._names = {path.name for path in self._folder.iterdir()}
                self._listed_change = changed_at if is_over else None
        except OSError:
            # Mostly there is no folder, because nobody listens.
            self._names, self._listed_change = set(), None

    def _send(self, names: Iterable[str]) -> None:
        if self._sender is None:
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        with _short_path(self._folder) as folder:
            for name in names:
                try:
                    self._sender.sendto(b"", f"{folder}/{name}")
                except FileNotFoundError:
                    self._names.discard(name)
                except ConnectionRefusedError:
                    self._remove_if_dead(name)
                except OSError:
                    # Its buffer is full, so it is awake anyway; or we have no right to wake it.
                    continue

    def _remove_if_dead(self, name: str) -> None:
        path = self._folder / name
        with contextlib.suppress(OSError):
            found = path.lstat()
            if time.time() - found.st_mtime > _NEWBORN_SECONDS:
                self._names.discard(name)
                if stat.S_ISSOCK(found.st_mode):
                    path.unlink()


class _Listener:
    """One socket, read by one event loop."""

    def __init__(self, folder: Path, name: str, on_wake_up: Callable[[], None]) -> None:
        self._path, self._on_wake_up = folder / name, on_wake_up
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            _bind(self.socket, folder, name)
            self._loop.add_reader(self.socket, self._drain)
        except BaseException:
            self.socket.close()
            self._remove_file()
            raise

    def stop(self) -> None:
        """Remove the file at once; reading ends in the loop, the only place where it may be ended."""
        self._remove_file()
        try:
            if threading.get_ident() == self._thread:
                self._end_reading()
            else:
                self._loop.call_soon_threadsafe(self._end_reading)
        except RuntimeError:
            # The loop is closed and reads nothing any more.
            self.socket.close()

    def _end_reading(self) -> None:
        self._loop.remove_reader(self.socket)
        self.socket.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_AT_ONCE):
                self.socket.recv(1)
        self._on_wake_up()

    def _remove_file(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


def _bind(listening: socket.socket, folder: Path, name: str) -> None:
    for attempt in range(1, _BIND_ATTEMPTS + 1):
        # As open as the lock beside it: who may not write here has to poll.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
        try:
            with _short_path(folder) as short:
                listening.bind(f"{short}/{name}")
            return
        except FileNotFoundError:
            # Who was the last to listen has just removed the folder.
            if attempt == _BIND_ATTEMPTS:
                raise


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """The folder under a name that fits into the address of a socket; where there is no /proc, in vain."""
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        yield str(folder)
        return
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def _forget_in_child() -> None:
    for wake_ups in list(_all_wake_ups):
        wake_ups.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
