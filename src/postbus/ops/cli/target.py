"""The store that a command works on: the option --url, and how it is opened."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click

from postbus.clock import SystemClock
from postbus.errors import StoreError
from postbus.ports import Store
from postbus.stores.sqlite import SQLiteStore
from postbus.targets import store_for

Command = TypeVar("Command", bound=Callable[..., Any])


def url_option(command: Command) -> Command:
    """Give a command its --url."""
    return click.option(
        "--url",
        envvar="POSTBUS_URL",
        show_envvar=True,
        required=True,
        callback=_refuse_memory,
        help="The bus's file, such as events.db or sqlite:///events.db.",
    )(command)


@asynccontextmanager
async def new_or_present_store(url: str) -> AsyncIterator[Store]:
    """The open store at *url*, created if it is not there."""
    store = store_for(url, SystemClock())
    try:
        await store.open()
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def present_store(url: str) -> AsyncIterator[Store]:
    """The open store at *url*; a mistyped path is an error and creates no file."""
    store = store_for(url, SystemClock())
    if isinstance(store, SQLiteStore) and not store.path.exists():
        raise StoreError(f"there is no file {store.path}; check --url")
    async with new_or_present_store(url) as opened:
        yield opened


def _refuse_memory(_context: click.Context, _parameter: click.Parameter, url: str) -> str:
    if url == "memory:":
        raise click.BadParameter("a bus in memory ends with its process; expected a file")
    return url
