"""Where the bus of a command is: the options --url and --schema, and the store that they name."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import click

from postbus.clock import SystemClock
from postbus.errors import InvalidConfigError, MissingExtraError, StoreError
from postbus.ports import Store
from postbus.stores.sqlite import SQLiteStore
from postbus.targets import store_for

URL_HELP = "The bus's database: postgresql://user@host/database, or a file such as events.db."
_DEFAULT_SCHEMA = "postbus"
_POSTGRES = ("postgresql://", "postgres://")

schema_option = click.option(
    "--schema", metavar="NAME", help=f"PostgreSQL: where the tables are.  [default: {_DEFAULT_SCHEMA}]"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A file, or a schema of the database on a server."""

    url: str
    schema: str | None
    """As it was given: None means the usual one."""

    def __str__(self) -> str:
        """For people to read: without a password."""
        if not is_on_server(self.url):
            return self.url
        with needs_driver():
            from postbus.stores.postgres.connecting import describe
        return f"schema {schema_or_default(self.schema)!r} in {describe(self.url)}"


def target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its --url and --schema, and what they say as its argument *target*."""

    @functools.wraps(command)
    def with_target(*args: Any, url: str, schema: str | None, **options: Any) -> None:
        if schema is not None and not is_on_server(url):
            raise click.UsageError("--schema is for PostgreSQL, where --url begins with postgresql://.")
        command(*args, target=Target(url=url, schema=schema), **options)

    url_option = click.option(
        "--url",
        envvar="POSTBUS_URL",
        show_envvar=True,
        metavar="URL",
        required=True,
        callback=_refuse_memory,
        help=URL_HELP,
    )
    return url_option(schema_option(with_target))


def is_on_server(url: str) -> bool:
    """Whether it is the URL of a PostgreSQL server."""
    return url.startswith(_POSTGRES)


def schema_or_default(schema: str | None) -> str:
    """The schema that --schema means."""
    return _DEFAULT_SCHEMA if schema is None else schema


@contextmanager
def needs_driver() -> Iterator[None]:
    """For imports of what needs the driver for PostgreSQL, which is an extra: MissingExtraError."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "asyncpg":
            raise
        raise MissingExtraError("PostgreSQL", "postgres") from missing


@contextmanager
def checks_schema() -> Iterator[None]:
    """A name that no schema can have is a usage error."""
    try:
        yield
    except InvalidConfigError as error:
        raise click.BadParameter(str(error), param_hint="--schema") from error


@asynccontextmanager
async def new_or_present_store(target: Target) -> AsyncIterator[Store]:
    """The open store of *target*, created if it is not there."""
    async with _opened(_make_store(target)) as store:
        yield store


@asynccontextmanager
async def present_store(target: Target) -> AsyncIterator[Store]:
    """The open store of *target*; a mistyped path, database or schema is an error and creates nothing."""
    store = _make_store(target)
    if isinstance(store, SQLiteStore):
        if not store.path.exists():
            raise StoreError(f"there is no file {store.path}; check --url")
    else:
        from postbus.ops.cli.postgres_schema import check_present

        await check_present(target.url, schema_or_default(target.schema))
    async with _opened(store):
        yield store


@asynccontextmanager
async def _opened(store: Store) -> AsyncIterator[Store]:
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def _make_store(target: Target) -> Store:
    if not is_on_server(target.url):
        return store_for(target.url, SystemClock())
    with needs_driver():
        from postbus.stores.postgres import PgEventStore
    with checks_schema():
        return PgEventStore(target.url, schema=schema_or_default(target.schema), clock=SystemClock())


def _refuse_memory(_context: click.Context, _parameter: click.Parameter, url: str) -> str:
    if url == "memory:":
        raise click.BadParameter("a bus in memory ends with its process; expected a file or a server")
    return url
