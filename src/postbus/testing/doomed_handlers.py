"""Handlers of a bus that is going to die: crash points before and after each of their calls."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, cast

from postbus.bus import EventBus
from postbus.delivery.receivers import Effects, Receiver, TransactionalReceiver
from postbus.delivery.subscriptions import Handler, Subscription
from postbus.events import Event
from postbus.testing.doom import Doom


def doom_handlers(bus: EventBus, doom: Doom) -> None:
    """Put crash points around whatever is subscribed by now.

    Those of a transactional subscriber are inside its transaction: the doomed store has them.
    """
    for loop in bus._subscribers:
        receiver = loop.subscriber.receiver
        if not isinstance(receiver, TransactionalReceiver):
            loop.subscriber = dataclasses.replace(loop.subscriber, receiver=_DoomedReceiver(receiver, doom))
    for subscription in bus._subscriptions:
        bus._subscriptions.add(_doom_subscription(subscription, doom))


class _DoomedReceiver:
    """Fulfils Receiver."""

    def __init__(self, real: Receiver, doom: Doom) -> None:
        self._real, self._doom = real, doom

    @property
    def easy_handler(self) -> None:
        return

    async def receive(self, event: Event) -> Effects | None:
        await self._doom.pass_by("before_handler")
        effects = await self._real.receive(event)
        await self._doom.pass_by("after_handler")
        return effects

    def note_unwritten(self, effects: Effects) -> None:
        self._real.note_unwritten(effects)

    def forget_unwritten(self) -> None:
        self._real.forget_unwritten()

    def alone(self, *, is_split: bool) -> "_DoomedReceiver":
        return _DoomedReceiver(self._real.alone(is_split=is_split), self._doom)


def _doom_subscription(subscription: Subscription, doom: Doom) -> Subscription:
    doomed = _doom_async if subscription.is_async else _doom_plain
    return dataclasses.replace(subscription, handler=doomed(subscription.handler, doom))


def _doom_async(handler: Handler, doom: Doom) -> Handler:
    async def call(argument: Any) -> None:
        await doom.pass_by("before_handler")
        await cast(Callable[[Any], Awaitable[object]], handler)(argument)
        await doom.pass_by("after_handler")

    return call


def _doom_plain(handler: Handler, doom: Doom) -> Handler:
    def call(argument: Any) -> object:
        if doom.is_dead or doom.is_reached("before_handler"):
            raise doom.error
        result = handler(argument)
        if doom.is_reached("after_handler"):
            raise doom.error
        return result

    return call
