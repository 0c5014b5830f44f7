"""The command: its options, and which way they lead."""

import asyncio
from pathlib import Path

import click

from postbus.ops.cli.worker.health import Address, parse_address
from postbus.ops.cli.worker.loading import App, parse_app
from postbus.ops.cli.worker.logs import set_up_logging
from postbus.ops.cli.worker.running import exit_code_of, run_alone
from postbus.ops.cli.worker.showing import Outlets
from postbus.ops.cli.worker.supervisor import Supervisor

_MOST_INSTANCES = 1_000
_LEVELS = ("debug", "info", "warning", "error", "critical")


def _address(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Address | None:
    try:
        return None if text is None else parse_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(short_help="Run a bus with its subscribers.")
@click.argument(
    "app", metavar="MODULE[:ATTRIBUTE]", callback=lambda _context, _parameter, app: parse_app(app)
)
@click.option(
    "--instances",
    "instance_count",
    metavar="N",
    type=click.IntRange(1, _MOST_INSTANCES),
    default=1,
    show_default=True,
    help="How many processes; one that ends is started again.",
)
@click.option(
    "--ready-file",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="A file that exists while the bus is started and not shutting down.",
)
@click.option(
    "--live-file",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="A file that is touched every second; an old one means that the process hangs.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Answer GET /ready and GET /live here.  [default host: 127.0.0.1]",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="What is logged to standard error.",
)
@click.option(
    "--log-format",
    type=click.Choice(("plain", "json")),
    default="plain",
    show_default=True,
    help="Lines for people, or one JSON object a line.",
)
def worker(
    app: App,
    instance_count: int,
    ready_file: Path | None,
    live_file: Path | None,
    health: Address | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run the bus that MODULE:ATTRIBUTE names, such as app:bus, with its subscribers.

    ATTRIBUTE is a bus, or a function (async or not) that returns one; "bus" if it is left out. The
    current folder is searched first. SIGTERM or SIGINT ends it: the event at hand is finished, its
    checkpoint written, and the exit code is 0. A second signal ends it at once.
    """
    set_up_logging(log_level, log_format)
    outlets = Outlets(ready_file, live_file, health)

    def run() -> int:
        if instance_count == 1:
            return run_alone(app, outlets)
        return asyncio.run(Supervisor(app, instance_count, log_level, log_format).run(outlets))

    raise click.exceptions.Exit(exit_code_of(app, run))
