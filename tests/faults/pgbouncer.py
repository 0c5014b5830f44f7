"""A real PgBouncer in transaction mode, found on this machine or fetched from Debian's packages."""

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from tests.postgres.existing import Postgres
from tests.postgres.folders import make_folder, remove_folder, server_account
from tests.postgres.processes import wait_until

# Where packages put it; that is on the PATH of root only.
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")
_NETWORK = ("-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10", "-o", "Acquire::Retries=1")
_FETCH_SECONDS = 120.0
_SETTINGS = """\
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
max_client_conn = 200
default_pool_size = 5
; Every transaction is on another connection than the one before, as under load.
server_round_robin = 1
"""


class PgBouncer:
    """Lends the connections of a server from transaction to transaction. A context manager."""

    def __init__(self, program: Path, server: Postgres) -> None:
        self._folder = make_folder(in_memory=False)
        # Its account may not be able to read where it comes from.
        self._program = shutil.copy(program, self._folder)
        self._libraries = self._folder / "lib"
        if _libraries_of(program).is_dir():
            shutil.copytree(_libraries_of(program), self._libraries)
        self._server, self._port = server, _free_port()

    def through(self, dsn: str) -> str:
        """The same database as *dsn*, through the pooler."""
        parts = urlsplit(dsn)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self._port}").geturl()

    def __enter__(self) -> Self:
        place = urlsplit(self._server.dsn("postgres"))
        settings, users = self._folder / "pgbouncer.ini", self._folder / "users.txt"
        names = [unquote(name or "").replace('"', '""') for name in (place.username, place.password)]
        users.write_text(f'"{names[0]}" "{names[1]}"\n')
        settings.write_text(
            _SETTINGS.format(
                host=place.hostname, port=place.port or 5432, users=users, listen_port=self._port
            )
        )
        account = server_account()
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [self._program, settings],
                env={**os.environ, "LD_LIBRARY_PATH": str(self._libraries)},
                # It refuses root, as PostgreSQL does.
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
                extra_groups=None if account is None else [],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, lambda: f"PgBouncer was ready\n{self.log()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        remove_folder(self._folder)

    def log(self) -> str:
        """What it has written to its log."""
        return (self._folder / "log").read_text(errors="replace")

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, f"PgBouncer ended\n{self.log()}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
            return True
        return False


def find() -> Path | None:
    """The program: of POSTBUS_TEST_PGBOUNCER, installed, or fetched; None if it can't be had."""
    if chosen := os.environ.get("POSTBUS_TEST_PGBOUNCER"):
        if not _runs(Path(chosen)):
            raise LookupError(f"POSTBUS_TEST_PGBOUNCER is {chosen!r}, which does not run")
        return Path(chosen)
    if installed := shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])):
        return Path(installed)
    return _fetch()


def _fetch() -> Path | None:
    """Unpack Debian's package into a cache of this user: nothing is installed, and root is not needed."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "postbus-tests"
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / "pgbouncer" / "usr" / "sbin" / "pgbouncer"
    with (cache / "lock").open("wb") as lock:
        # Several workers of a test run want it at the same moment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _runs(program):
            shutil.rmtree(cache / "pgbouncer", ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                if _unpack_packages(Path(folder)):
                    (Path(folder) / "root").rename(cache / "pgbouncer")
    return program if _runs(program) else None


def _unpack_packages(folder: Path) -> bool:
    """Whether the packages are in folder/root."""
    state = ["-o", f"Dir::State={folder}/state", "-o", f"Dir::Cache={folder}/cache"]
    (folder / "state" / "lists" / "partial").mkdir(parents=True)
    (folder / "cache" / "archives" / "partial").mkdir(parents=True)
    # With the machine's own lists of packages, or else, if it has none, with fresh ones.
    return _download(folder, []) or (_apt("get", *state, "update", cwd=folder) and _download(folder, state))


def _download(folder: Path, options: list[str]) -> bool:
    needed = subprocess.run(
        ["apt-cache", *options, "depends", "pgbouncer"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    names = [line.split()[-1] for line in needed.splitlines() if line.strip().startswith("Depends: lib")]
    packages = ["pgbouncer", *(name for name in names if name != "libc6")]
    if not _apt("get", *options, "download", *packages, cwd=folder):
        return False
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
    return True


def _apt(program: str, *arguments: str, cwd: Path) -> bool:
    command = [f"apt-{program}", "-q", "-o", "APT::Sandbox::User=", *_NETWORK, *arguments]
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, timeout=_FETCH_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _runs(program: Path) -> bool:
    if not program.is_file():
        return False
    environment = {**os.environ, "LD_LIBRARY_PATH": str(_libraries_of(program))}
    return subprocess.run([program, "--version"], env=environment, capture_output=True).returncode == 0


def _libraries_of(program: Path) -> Path:
    """Where a fetched program has its libraries; an installed one has none of its own."""
    found = sorted(program.parents[1].glob("lib/*-linux-gnu*")) if "postbus-tests" in program.parts else []
    return found[0] if found else program.parent / "no libraries of its own"


def _free_port() -> int:
    with socket.socket() as attempt:
        attempt.bind(("127.0.0.1", 0))
        port: int = attempt.getsockname()[1]
        return port
