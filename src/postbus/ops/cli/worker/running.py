"""From "app:bus" to an exit code."""

import asyncio
import logging
from collections.abc import Callable

from postbus.errors import PostbusError
from postbus.ops.cli.worker.ending import end_soon
from postbus.ops.cli.worker.instance import Instance
from postbus.ops.cli.worker.loading import App, BadAppError, find, user_traceback
from postbus.ops.cli.worker.showing import Outlets, shown
from postbus.ops.cli.worker.signals import StopSignals

logger = logging.getLogger("postbus.worker")

OK, FAILED, BAD_APP, STOPPED_BY_USER = 0, 1, BadAppError.exit_code, 130


def run_alone(app: App, outlets: Outlets) -> int:
    """Run the bus in this process until a signal; the exit code."""

    async def run(found: object) -> int:
        stop = asyncio.Event()
        StopSignals(stop).listen()
        instance = Instance(app)
        async with shown(instance, outlets, str(app)) as show:
            await instance.run(found, stop, show)
        end_soon(OK)
        return OK

    return asyncio.run(run(find(app)))


def exit_code_of(app: App, run: Callable[[], int]) -> int:
    """The exit code of what is to be run; why it could not is in the log. The process ends soon."""
    code = _exit_code_of(app, run)
    end_soon(code)
    return code


def _exit_code_of(app: App, run: Callable[[], int]) -> int:
    try:
        return run()
    except BadAppError as error:
        _log_bad_app(error)
        return BAD_APP
    except PostbusError as error:
        logger.critical("%s can't run: %s", app, " ".join(str(error).split()))
        return FAILED
    except KeyboardInterrupt:
        # During the import: after it SIGINT is ours.
        return STOPPED_BY_USER


def _log_bad_app(error: BadAppError) -> None:
    """Say what is wrong, and where in the user's own code."""
    cause = error.__cause__
    traceback = None if cause is None else (type(cause), cause, user_traceback(cause))
    logger.critical("%s", error.message, exc_info=traceback)
