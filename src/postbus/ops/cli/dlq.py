"""postbus dlq: looks at dead letters, gives them another chance, deletes them."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import click

from postbus.errors import EventNotFoundError, NotADeadLetterError
from postbus.inspection import DEFAULT_PAGE_SIZE, DLQInspector
from postbus.ops.cli.dead_letter_views import show_count, show_dead_letter, show_json, show_page, to_plain
from postbus.ops.cli.target import present_store, url_option

_NOTHING_MATCHED = 3

T = TypeVar("T")


class _NothingMatched(click.ClickException):
    exit_code = _NOTHING_MATCHED


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(short_help="Look at dead letters, retry or delete them.")
def dlq() -> None:
    """Dead letters: events that used up their attempts.

    Works while a bus runs on the file, and while none does. A running bus takes up
    what is retried at once.
    """


@dlq.command("ls")
@url_option
@click.option("--limit", type=click.IntRange(min=0), default=DEFAULT_PAGE_SIZE, show_default=True)
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
def list_dead_letters(url: str, limit: int, offset: int, as_json: bool) -> None:
    """List dead letters, newest first."""
    page = _inspect(url, lambda inspector: inspector.list(limit, offset))
    if as_json:
        events = [to_plain(event) for event in page.events]
        show_json({"total": page.total, "limit": limit, "offset": offset, "events": events})
    else:
        show_page(page, offset)


@dlq.command("show")
@click.argument("event_id", metavar="ID")
@url_option
@json_option
def show(event_id: str, url: str, as_json: bool) -> None:
    """Show one dead letter: its payload and the error of every attempt."""
    try:
        event = _inspect(url, lambda inspector: inspector.get(event_id))
    except (EventNotFoundError, NotADeadLetterError) as error:
        raise _NothingMatched(str(error)) from error
    if as_json:
        show_json(to_plain(event))
    else:
        show_dead_letter(event)


@dlq.command("retry")
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Retry every dead letter.")
@url_option
@json_option
def retry(event_ids: Sequence[str], is_all: bool, url: str, as_json: bool) -> None:
    """Begin anew with dead letters: pending, no attempts, no errors."""
    if is_all == bool(event_ids):
        raise click.UsageError("Give one or more IDs, or --all.")
    refusals: list[str] = []
    if is_all:
        count = _inspect(url, lambda inspector: inspector.retry_all())
    else:
        count, refusals = _inspect(url, lambda inspector: _retry_each(inspector, event_ids))
    for refusal in refusals:
        click.echo(f"Error: {refusal}", err=True)
    show_count("retried", count, as_json=as_json)
    if refusals or not count:
        raise click.exceptions.Exit(_NOTHING_MATCHED)


@dlq.command("purge")
@click.option(
    "--older-than-days",
    type=click.FloatRange(min=0),
    required=True,
    help="Delete what was published so many days ago, or more; 0 means all.",
)
@click.option("--yes", is_flag=True, help="Don't ask. Needed where nobody can answer.")
@url_option
@json_option
def purge(older_than_days: float, yes: bool, url: str, as_json: bool) -> None:
    """Delete old dead letters for good."""
    if not yes:
        _ask(f"Delete the dead letters of {url} published {older_than_days:g} or more days ago?")
    count = _inspect(url, lambda inspector: inspector.purge(older_than_days))
    show_count("deleted", count, as_json=as_json)
    if not count:
        raise click.exceptions.Exit(_NOTHING_MATCHED)


def _inspect(url: str, look: Callable[[DLQInspector], Awaitable[T]]) -> T:
    async def run() -> T:
        async with present_store(url) as store:
            return await look(DLQInspector(store))

    return asyncio.run(run())


async def _retry_each(inspector: DLQInspector, event_ids: Sequence[str]) -> tuple[int, list[str]]:
    """How many were retried, and why the others were not."""
    refusals: list[str] = []
    for event_id in event_ids:
        try:
            await inspector.retry(event_id)
        except (EventNotFoundError, NotADeadLetterError) as error:
            refusals.append(str(error))
    return len(event_ids) - len(refusals), refusals


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("Deleting needs --yes where nobody can answer a question.")
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was deleted")
