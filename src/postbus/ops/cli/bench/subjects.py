"""The stores that can be measured, and how that is done on each."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from postbus.errors import MissingExtraError
from postbus.ops.bench.machine import describe_folder
from postbus.ops.bench.model import Workload
from postbus.ops.bench.sqlite.catalogue import WORKLOADS

FillFolder = Callable[[Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured on a store, and what its figures depend on.

    *catalogue* is where processes find the workloads; *new_place* makes what a run needs beside its
    folder, gives what is to be left there, and takes everything away again.
    """

    catalogue: str
    workloads: Mapping[str, Workload]
    described: Mapping[str, str]
    packages: tuple[str, ...]
    new_place: Callable[[], AbstractContextManager[FillFolder]]


def on_sqlite(base: Path) -> Subject:
    """Files in a folder of the benchmark's own."""
    return Subject(
        catalogue="postbus.ops.bench.sqlite.catalogue",
        workloads=WORKLOADS,
        described={"files in": describe_folder(base.parent)},
        packages=("postbus", "msgspec"),
        new_place=_folder_only,
    )


def on_postgres(dsn: str) -> Subject:
    """Databases on a server. StoreError, before anything is measured, if there can be none."""
    try:
        # Only with --dsn the driver is needed, and it is an extra.
        from postbus.ops.bench.postgres.candidates import leave_dsn
        from postbus.ops.bench.postgres.catalogue import WORKLOADS as ON_POSTGRES
        from postbus.ops.bench.postgres.databases import describe_server, new_database
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "asyncpg":
            raise
        raise MissingExtraError("PostgreSQL", "postgres") from missing

    @contextlib.contextmanager
    def own_database() -> Iterator[FillFolder]:
        with new_database(dsn) as own_dsn:
            yield partial(leave_dsn, dsn=own_dsn)

    with new_database(dsn) as any_dsn:
        server = describe_server(any_dsn)
    return Subject(
        catalogue="postbus.ops.bench.postgres.catalogue",
        workloads=ON_POSTGRES,
        described={"postgresql": server},
        packages=("postbus", "msgspec", "asyncpg"),
        new_place=own_database,
    )


@contextlib.contextmanager
def _folder_only() -> Iterator[FillFolder]:
    yield lambda _folder: None
