"""The postbus command: its groups, its version and its exit codes."""

import contextlib
import importlib.metadata
import io
import sys
from collections.abc import Sequence

import click

from postbus.errors import MissingExtraError, PostbusError
from postbus.ops.cli.bench import bench
from postbus.ops.cli.demo import demo
from postbus.ops.cli.dlq import dlq
from postbus.ops.cli.migrate import migrate
from postbus.ops.cli.publish import publish
from postbus.ops.cli.worker import worker

_STOPPED_BY_USER = 130


class _MissingExtra(click.ClickException):
    exit_code = 2


class _Commands(click.Group):
    """Commands whose refusals are one line on stderr and exit code 1, never a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PostbusError as error:
            refusal = _MissingExtra if isinstance(error, MissingExtraError) else click.ClickException
            raise refusal(" ".join(str(error).split())) from error


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage or missing extra, 3 nothing matched, 130 or 143 stopped.",
)
@click.version_option(importlib.metadata.version("postbus"), prog_name="postbus")
def postbus() -> None:
    """A durable event bus: a published event is never lost."""


postbus.add_command(demo)
postbus.add_command(migrate)
postbus.add_command(publish)
postbus.add_command(dlq)
postbus.add_command(worker)
postbus.add_command(bench)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets an escape sequence, not a traceback.
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = postbus.main(arguments, prog_name="postbus", standalone_mode=False)
    except click.Abort:
        click.echo("Stopped.", err=True)
        return _STOPPED_BY_USER
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0
