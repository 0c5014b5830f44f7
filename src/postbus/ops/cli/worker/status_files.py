"""Readiness and liveness as files, for orchestrators that look at one."""

import contextlib
import logging
import os
from pathlib import Path

from postbus.errors import InvalidConfigError
from postbus.ops.cli.worker.status import Status

logger = logging.getLogger("postbus.worker")


class StatusFiles:
    """A file that exists while the worker is started, and one that is touched while it lives."""

    def __init__(self, ready: Path | None, live: Path | None, status: Status) -> None:
        self._ready, self._live, self._status = ready, live, status
        self._is_shown = self._has_failed = False

    def prepare(self) -> None:
        """Remove what a killed process left behind, and see that both can be written. InvalidConfigError."""
        for name, path in (("--ready-file", self._ready), ("--live-file", self._live)):
            if path is not None:
                try:
                    _draft(path).unlink()
                    path.unlink(missing_ok=True)
                except OSError as error:
                    expected = f"a file that can be written; the system says: {error.strerror}"
                    raise InvalidConfigError(name, str(path), expected) from error

    def show(self) -> None:
        """Make the files say what is true now. To be called at every change, and every second."""
        try:
            if self._live is not None and self._status.is_live:
                self._touch(self._live)
            if self._ready is not None:
                self._show_ready(self._ready, self._status.is_started)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.error("can't write a status file, trying again every second: %s", error)

    def remove(self) -> None:
        """Nothing is ready or lives here any more."""
        with contextlib.suppress(OSError):
            if self._ready is not None and self._is_shown:
                self._set_ready(self._ready, False)
            if self._live is not None:
                self._live.unlink(missing_ok=True)

    def _show_ready(self, ready: Path, is_ready: bool) -> None:
        # Somebody may have removed it, such as a second worker that was started by mistake and soon gave up.
        if is_ready is not self._is_shown or (is_ready and not ready.exists()):
            self._set_ready(ready, is_ready)

    def _touch(self, live: Path) -> None:
        try:
            os.utime(live)
        except FileNotFoundError:
            _write(live)

    def _set_ready(self, ready: Path, is_ready: bool) -> None:
        if is_ready:
            _write(ready)
        elif _owner(ready) == str(os.getpid()):
            # It may be that of a successor by now.
            ready.unlink(missing_ok=True)
        self._is_shown = is_ready


def _write(path: Path) -> None:
    """Our process id, all at once: nobody ever reads half of it."""
    draft = _draft(path)
    try:
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _draft(path: Path) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(f"{os.getpid()}\n")
    return draft


def _owner(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None
