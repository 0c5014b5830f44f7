"""postbus dlq: looks at dead letters, gives them another chance, resolves or deletes them."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import click

from postbus.errors import EventNotFoundError, NotADeadLetterError
from postbus.inspection import DEFAULT_PAGE_SIZE, DLQInspector
from postbus.ops.cli.dead_letter_views import show_count, show_dead_letter, show_json, show_page, to_plain
from postbus.ops.cli.target import Target, present_store, target_options

_NOTHING_MATCHED = 3

T = TypeVar("T")


class _NothingMatched(click.ClickException):
    exit_code = _NOTHING_MATCHED


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
subscriber_option = click.option(
    "--subscriber", "subscriber_id", metavar="ID", help="Only those of this durable subscriber."
)


@click.group(short_help="Look at dead letters, retry, resolve or delete them.")
def dlq() -> None:
    """Dead letters: events that used up their attempts, with the handlers or a durable subscriber.

    Works while a bus runs on the database, and while none does. A running bus takes up
    what is retried at once. The ID of an event stands for all dead letters of that event.
    """


@dlq.command("ls")
@target_options
@click.option("--limit", type=click.IntRange(min=0), default=DEFAULT_PAGE_SIZE, show_default=True)
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True)
@subscriber_option
@json_option
def list_dead_letters(
    target: Target, limit: int, offset: int, subscriber_id: str | None, as_json: bool
) -> None:
    """List unresolved dead letters, newest first."""
    page = _inspect(target, lambda inspector: inspector.list(limit, offset, subscriber_id))
    if as_json:
        events = [to_plain(event) for event in page.events]
        show_json({"total": page.total, "limit": limit, "offset": offset, "events": events})
    else:
        show_page(page, offset)


@dlq.command("show")
@click.argument("dead_letter_id", metavar="ID")
@target_options
@json_option
def show(dead_letter_id: str, target: Target, as_json: bool) -> None:
    """Show one dead letter: its payload and the error of every attempt."""
    try:
        dead_letter = _inspect(target, lambda inspector: inspector.get(dead_letter_id))
    except (EventNotFoundError, NotADeadLetterError) as error:
        raise _NothingMatched(str(error)) from error
    if as_json:
        show_json(to_plain(dead_letter))
    else:
        show_dead_letter(dead_letter)


@dlq.command("retry")
@click.argument("dead_letter_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Retry every dead letter.")
@click.option("--type", "event_type", metavar="TYPE", help="With --all: only those of this event type.")
@subscriber_option
@target_options
@json_option
def retry(
    dead_letter_ids: Sequence[str],
    is_all: bool,
    event_type: str | None,
    subscriber_id: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Give dead letters another chance.

    The handlers begin anew with theirs: pending, no attempts, no errors.
    A durable subscriber makes one more attempt.
    """
    if is_all == bool(dead_letter_ids):
        raise click.UsageError("Give one or more IDs, or --all.")
    if subscriber_id is not None and not is_all:
        raise click.UsageError("--subscriber needs --all.")
    if event_type is not None and not is_all:
        raise click.UsageError("--type needs --all.")
    if is_all:
        count = _inspect(target, lambda inspector: inspector.retry_all(event_type, subscriber_id))
        _finish("retried", count, (), as_json=as_json)
    else:
        _change_each(target, dead_letter_ids, DLQInspector.retry, "retried", as_json=as_json)


@dlq.command("resolve")
@click.argument("dead_letter_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--by", metavar="NAME", required=True, help="Who has seen to it.")
@click.option("--notes", metavar="TEXT", help="What was done.")
@target_options
@json_option
def resolve(
    dead_letter_ids: Sequence[str], by: str, notes: str | None, target: Target, as_json: bool
) -> None:
    """Note that somebody has seen to dead letters: they leave the list and stay on record."""

    async def resolve_one(inspector: DLQInspector, dead_letter_id: str) -> None:
        await inspector.resolve(dead_letter_id, by, notes)

    _change_each(target, dead_letter_ids, resolve_one, "resolved", as_json=as_json)


@dlq.command("purge")
@click.option(
    "--older-than-days",
    type=click.FloatRange(min=0),
    required=True,
    help="Delete what was published, or given up by a durable subscriber, so many days ago; 0 means all.",
)
@click.option("--yes", is_flag=True, help="Don't ask. Needed where nobody can answer.")
@target_options
@json_option
def purge(older_than_days: float, yes: bool, target: Target, as_json: bool) -> None:
    """Delete old dead letters for good, resolved ones too."""
    if not yes:
        _ask(f"Delete the dead letters of {target} that are {older_than_days:g} or more days old?")
    count = _inspect(target, lambda inspector: inspector.purge(older_than_days))
    _finish("deleted", count, (), as_json=as_json)


def _inspect(target: Target, look: Callable[[DLQInspector], Awaitable[T]]) -> T:
    async def run() -> T:
        async with present_store(target) as store:
            return await look(DLQInspector(store))

    return asyncio.run(run())


def _change_each(
    target: Target,
    dead_letter_ids: Sequence[str],
    change: Callable[[DLQInspector, str], Awaitable[None]],
    verb: str,
    *,
    as_json: bool,
) -> None:
    """Change one after the other; one that can't be changed spoils no other."""
    refusals: list[str] = []

    async def change_all(inspector: DLQInspector) -> None:
        for dead_letter_id in dead_letter_ids:
            try:
                await change(inspector, dead_letter_id)
            except (EventNotFoundError, NotADeadLetterError) as error:
                refusals.append(str(error))

    _inspect(target, change_all)
    _finish(verb, len(dead_letter_ids) - len(refusals), refusals, as_json=as_json)


def _finish(verb: str, count: int, refusals: Iterable[str], *, as_json: bool) -> None:
    """Tell what was done and what was not; an exit code of 3 if anything was not, or nothing was."""
    errors = list(refusals)
    for error in errors:
        click.echo(f"Error: {error}", err=True)
    show_count(verb, count, as_json=as_json)
    if errors or not count:
        raise click.exceptions.Exit(_NOTHING_MATCHED)


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("Deleting needs --yes where nobody can answer a question.")
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was deleted")
