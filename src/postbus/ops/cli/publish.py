"""postbus publish: leaves an event for the process that owns the handlers."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence

import click

from postbus.clock import SystemClock
from postbus.config import DEFAULT_MAX_PAYLOAD_BYTES
from postbus.drafting import Drafts
from postbus.errors import StoreError
from postbus.events import EventStatus
from postbus.ids import new_event_id
from postbus.ops.cli.target import Target, new_or_present_store, target_options
from postbus.ports import Store


@click.command(short_help="Store an event for the running bus.")
@click.argument("event_type", metavar="TYPE")
@click.argument("payload_json", metavar="[PAYLOAD_JSON]", default="null")
@target_options
@click.option("--metadata", "pairs", metavar="KEY=VALUE", multiple=True, help="May be given several times.")
@click.option("--event-id", metavar="ID", help="Publishing the same id again stores nothing.")
def publish(
    event_type: str, payload_json: str, target: Target, pairs: Sequence[str], event_id: str | None
) -> None:
    """Store an event of TYPE and print its id.

    PAYLOAD_JSON is its payload, "-" reads it from standard input. A bus takes the event up at once,
    or when it runs the next time: in a file it is pending until one with a matching handler does.
    """
    payload, metadata = _parse_payload(payload_json), _parse_metadata(pairs)

    async def store_event() -> tuple[str, bool]:
        async with new_or_present_store(target) as store:
            return await add_pending(store, event_type, payload, metadata, event_id)

    stored_id, is_new = asyncio.run(store_event())
    click.echo(stored_id)
    if not is_new:
        click.echo("This id was published before: nothing was stored.", err=True)


async def add_pending(
    store: Store, event_type: str, payload: object, metadata: Mapping[str, str] | None, event_id: str | None
) -> tuple[str, bool]:
    """Store one event for whoever owns the dispatch; its id, and whether it was new.

    A bus would try to become the owner, and settle the event as one that no handler wants.
    """
    drafts = Drafts(_pending, SystemClock(), new_event_id, DEFAULT_MAX_PAYLOAD_BYTES)
    draft = drafts.draft(event_type, payload, metadata, event_id, wait=False)
    stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def on_stored(sequences: Sequence[int | None], _: Sequence[int | None], error: StoreError | None) -> None:
        if error is not None:
            stored.set_exception(error)
        else:
            stored.set_result(sequences[0] is not None)

    store.queue.add((draft,), on_stored)
    return draft.id, await stored


def _pending(event_type: str, *, wait: bool) -> EventStatus:  # noqa: ARG001
    return EventStatus.PENDING


def _parse_payload(text: str) -> object:
    try:
        if text == "-":
            text = sys.stdin.read()
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="PAYLOAD_JSON") from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON value")


def _parse_metadata(pairs: Sequence[str]) -> dict[str, str] | None:
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not of the form KEY=VALUE", param_hint="--metadata")
        metadata[key] = value
    return metadata or None
