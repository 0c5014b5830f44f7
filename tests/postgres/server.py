"""A PostgreSQL server that tests start, stop, kill and throw away."""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.postgres.binaries import find, usable_by_server, version_of
from tests.postgres.clusters import make_cluster, server_environment
from tests.postgres.folders import make_folder, remove_folder, server_account
from tests.postgres.processes import alive, children_of, is_stopped, wait_until

# Below the ports that outgoing connections get: otherwise a client that tries again and again to reach
# a stopped server is at last given that very port as its own and is connected to itself.
_PORTS = range(20_000, 32_000)
# fsync and synchronous_commit stay on, as in production.
_SETTINGS: Mapping[str, str | int] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "max_prepared_transactions": 20,
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    # Not in /dev/shm, where a killed server would leave it for ever.
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %d ",
}
_PR_SET_PDEATHSIG = 1
_IPC_RMID = 0
_LIBC = ctypes.CDLL(None)
# A server ends with the thread that started it. Started from another than the main thread, it is started
# by this one, which lives as long as the process.
_LAUNCHER = ThreadPoolExecutor(1, thread_name_prefix="postgres-launcher")


class Server:
    """A server of our own: it ends with this process, and its address survives kill() and start()."""

    def __init__(
        self,
        programs: Path | None = None,
        *,
        settings: Mapping[str, str | int] | None = None,
        base: Path | None = None,
    ) -> None:
        self._programs = usable_by_server(programs or find())
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.version = version_of(self._programs)
        self.port = _free_port()
        # In memory, unless it is to be in *base*: there a new database takes a tenth of the time. Killed
        # processes lose nothing there.
        self.folder = make_folder(in_memory=True, base=base)

    @property
    def pid(self) -> int:
        """The postmaster, whose children are all its other processes."""
        return self._running().pid

    def dsn(self, database: str = "postgres") -> str:
        """How to reach one of its databases by TCP, as its superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def socket_dsn(self, database: str = "postgres") -> str:
        """How to reach one of its databases by its Unix socket, as its superuser."""
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

    def start(self) -> None:
        """Start it and wait until it takes connections, after a crash that is when it has recovered."""
        assert self._process is None, "the server runs already"
        if not self._data.exists():
            self._initialise()
        process = self._process = self._launch()
        wait_until(
            lambda: process.poll() is not None or self._is_ready(process.pid),
            lambda: f"PostgreSQL was ready\n{self.log()}",
        )
        if process.poll() is not None:
            self._process = None
            raise RuntimeError(f"PostgreSQL ended with {process.returncode} at its start\n{self.log()}")

    def stop(self) -> None:
        """Shut it down in good order; open sessions are ended (the mode "fast")."""
        process = self._running()
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None, lambda: f"PostgreSQL stopped\n{self.log()}")
        self._process = None

    def restart(self) -> None:
        """Stop it in good order and start it again."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """End all of its processes by SIGKILL: the next start() has to recover from a crash."""
        process = self._running()
        # A postmaster that stands still starts no more children and tidies up after none.
        process.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: process.poll() is not None or is_stopped(process.pid),
            lambda: "the postmaster stood still",
        )
        children = children_of(process.pid)
        process.kill()
        process.wait()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        # They are in the way of the next start for as long as they hold the shared memory.
        wait_until(lambda: not alive(children), lambda: "the server's processes were gone")
        self._process = None

    def close(self) -> None:
        """End it and remove all that it has written."""
        if self._process is not None:
            self.kill()
        self._remove_shared_memory()
        remove_folder(self.folder)

    def log(self) -> str:
        """The end of what it has written to its log."""
        log = self.folder / "log"
        return log.read_text(errors="replace")[-10_000:] if log.exists() else ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server does not run"
        return self._process

    def _initialise(self) -> None:
        make_cluster(self._programs, self._data)
        places = {"port": self.port, "unix_socket_directories": self.folder}
        # In the file and not on the command line, which would outrank ALTER SYSTEM.
        with (self._data / "postgresql.conf").open("a") as file:
            for name, value in {**_SETTINGS, **places, **self._settings}.items():
                file.write(f"{name} = '{value}'\n")

    def _launch(self) -> subprocess.Popen[bytes]:
        command = ["postgres", "-D", str(self._data)]
        if threading.current_thread() is threading.main_thread():
            return self._spawn(command)
        return _LAUNCHER.submit(self._spawn, command).result()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = server_account()
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._programs / command[0], *command[1:]],
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
                extra_groups=None if account is None else [],
                cwd=self.folder,
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C is for the test run, which then ends its servers.
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _is_ready(self, pid: int) -> bool:
        lines = self._pid_file()
        # The first line tells ours from the file that a killed server has left.
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _remove_shared_memory(self) -> None:
        """Do what a killed server could not: its few bytes of System V memory would stay until a reboot."""
        lines = self._pid_file()
        if len(lines) > 6 and lines[6].strip():
            _LIBC.shmctl(int(lines[6].split()[1]), _IPC_RMID, None)

    def _pid_file(self) -> list[str]:
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []


def _free_port() -> int:
    # Not the shared generator, which may be seeded: all workers would try the same ports.
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as attempt, contextlib.suppress(OSError):
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port of {_PORTS} is free on 127.0.0.1")


def _end_with_parent() -> None:
    """In the new process: shut down at once when the one that started it is gone, however it ended."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
