"""The command: where its files go, and what its end means for the exit code."""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console

from postbus.ops.cli.demo.course import Demonstration, Files
from postbus.ops.cli.demo.display import Display, LiveDisplay, PlainDisplay
from postbus.ops.cli.demo.process import Stop
from postbus.ops.cli.demo.summary import show_summary

_DEFAULT_ORDERS = 10_000
# Among fewer the poison would make up most of its handler's attempts and open the circuit breaker.
_FEWEST_ORDERS = 1_000
_MOST_ORDERS = 999_999
_MOST_SHOWN = 10


@click.command(short_help="Kill a bus half-way and see that nothing is lost.")
@click.option(
    "--orders",
    "order_count",
    type=click.IntRange(_FEWEST_ORDERS, _MOST_ORDERS),
    default=_DEFAULT_ORDERS,
    show_default=True,
    help="How many events to publish.",
)
@click.option("--path", type=click.Path(path_type=Path), help="Keep the database, in this new file.")
def demo(order_count: int, path: Path | None) -> None:
    """Publish orders on a fresh SQLite file, kill the process half-way, start it again.

    Then look up every order that was acknowledged: each is processed or a dead letter,
    and none is lost. Takes a few seconds.
    """
    stop = Stop()
    with stop.watch(), _new_files(path) as files:
        outcome = Demonstration(files, order_count, stop, _make_display()).run()
        show_summary(Console(highlight=False), outcome, path)
        if outcome.lost_count:
            some = ", ".join(outcome.findings.missing_ids[:_MOST_SHOWN]) or "none"
            raise click.ClickException(
                f"{outcome.lost_count:,} acknowledged orders are lost; not stored: {some}"
            )
    if stop:
        raise click.exceptions.Exit(stop.exit_code)


@contextlib.contextmanager
def _new_files(path: Path | None) -> Iterator[Files]:
    """Files beside *path*, or in a folder that is deleted unless something goes wrong."""
    if path is not None:
        yield _refuse_present(Files(path))
        return
    folder = Path(tempfile.mkdtemp(prefix="postbus-demo-"))
    try:
        yield Files(folder / "demo.db")
    except (Exception, GeneratorExit):
        click.echo(f"The files of this run are kept in {folder}", err=True)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _refuse_present(files: Files) -> Files:
    for path in (files.database, files.receipts):
        if path.exists():
            raise click.BadParameter(f"{path} is there already; expected a new file", param_hint="--path")
    if not files.database.parent.is_dir():
        raise click.BadParameter(f"the folder {files.database.parent} does not exist", param_hint="--path")
    return files


def _make_display() -> Display:
    console = Console(stderr=True, highlight=False)
    is_live = sys.stdout.isatty() and sys.stderr.isatty() and not console.is_dumb_terminal
    return LiveDisplay(console, "postbus demo") if is_live else PlainDisplay(console)
