"""Calls of a durable subscriber's handler: each under a watch, and judged by how it ended."""

import asyncio

from postbus.closing import is_closing
from postbus.delivery.deliveries import LeftBehindError, describe_timeout
from postbus.delivery.failures import Failed, failed_by
from postbus.delivery.handler_watch import HandlerWatch
from postbus.delivery.patience import Patience, StoppedError, is_outage
from postbus.delivery.receivers import Effects, Receiver
from postbus.errors import EventBusShutdownError, StoreError
from postbus.events import Event


class HandlerCalls:
    """Here user code ends and ours begins."""

    def __init__(self, watch: HandlerWatch, patience: Patience) -> None:
        self._watch, self._patience = watch, patience

    async def call(self, receiver: Receiver, event: Event) -> Effects | Failed | StoreError | None:
        """One call. StoppedError, LeftBehindError."""
        watch = self._watch
        error: BaseException | None = None
        effects: Effects | None = None
        watch.begin()
        try:
            effects = await receiver.receive(event)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as raised:
            if is_closing(raised):
                raise
            error = raised
        finally:
            watch.end()
        outcome = self.judge(error)
        return effects if outcome is None else outcome

    def judge(self, error: BaseException | None) -> Failed | StoreError | None:
        """What to think of a call that has ended; None: well. StoppedError, LeftBehindError."""
        watch = self._watch
        if watch.is_stubborn:
            raise LeftBehindError
        if watch.is_late and watch.take_timeout():
            return Failed(describe_timeout(watch.timeout, error), cause=error)
        return None if error is None else self._judge(error)

    def _judge(self, error: BaseException) -> Failed | StoreError:
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise error  # somebody wants the task gone; if not, the handler raised it of its own
        if isinstance(error, EventBusShutdownError) and self._patience.is_stopping:
            # The handler needs the bus, which takes no new work: the next start delivers the event.
            raise StoppedError from error
        if isinstance(error, StoreError) and is_outage(error):
            return error
        return failed_by(error)
