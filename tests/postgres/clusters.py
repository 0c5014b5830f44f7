"""New clusters for servers: made by initdb once for each version, and copied from then on."""

import atexit
import os
import subprocess
from functools import cache
from pathlib import Path

from tests.postgres.folders import make_folder, remove_folder, server_account

_INITDB = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]


def make_cluster(programs: Path, data: Path) -> None:
    """The files of a server that was never started, in the folder *data*: initdb takes ten times as long."""
    _run(["cp", "-Rp", _untouched(programs), data])


def server_environment() -> dict[str, str]:
    """Ours, but for what would tell the server's programs of another server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**ours, "LC_ALL": "C"}


@cache
def _untouched(programs: Path) -> Path:
    folder = make_folder(in_memory=True)
    atexit.register(remove_folder, folder)
    data = folder / "data"
    _run([programs / "initdb", *_INITDB, f"--pgdata={data}"])
    return data


def _run(command: list[str | Path]) -> None:
    """As the account of the server, whose files they are to be."""
    account = server_account()
    ended = subprocess.run(
        command,
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
        cwd="/",
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} ended with {ended.returncode}\n{ended.stdout}")
