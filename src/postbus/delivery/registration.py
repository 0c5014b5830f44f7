"""Makes subscriptions of what users hand to subscribe(): functions and observers, with an id or without."""

import functools
import inspect
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from postbus.config import (
    AnyCheckpointMode,
    ReliableDeliveryConfig,
    RetryPolicy,
    check_checkpoint_mode,
    check_choice,
    check_timeout,
    check_whole_number,
)
from postbus.delivery.delivered import Delivered
from postbus.delivery.gate import Gate
from postbus.delivery.handler_threads import HandlerThreads
from postbus.delivery.receivers import HandlerReceiver, StatefulReceiver, TransactionalReceiver
from postbus.delivery.subscriber import (
    DEFAULT_CONCURRENCY,
    MOST_PARTITIONS,
    Mode,
    StartFrom,
    Subscriber,
    check_start_from,
)
from postbus.delivery.subscriptions import (
    RetryOverride,
    Subscription,
    check_handler,
    is_async_handler,
)
from postbus.drafting import Drafts
from postbus.errors import DurableIdRequiredError, InvalidConfigError, InvalidHandlerError
from postbus.events import SubscriberId
from postbus.policy.names import check_room_for_parts, check_subscriber_id
from postbus.policy.payload_types import payload_type_of
from postbus.policy.retry import override_policy
from postbus.policy.upcasting import Upcasters
from postbus.ports import Clock, EventObserver, StatefulObserver, Store


class Registration:
    """Knows the defaults of a bus."""

    def __init__(
        self,
        retry: RetryPolicy,
        config: ReliableDeliveryConfig,
        handler_timeout: float,
        threads: HandlerThreads,
        drafts: Drafts,
        store: Store,
        clock: Clock,
    ) -> None:
        self._retry, self._config, self._handler_timeout = retry, config, handler_timeout
        self._threads, self._drafts, self._store, self._clock = threads, drafts, store, clock
        self.upcasters = Upcasters()

    def handler(
        self, pattern: str, handler: object, timeout: float | None, retry: RetryOverride
    ) -> Subscription:
        """A handler that lives with this process."""
        if not self._store.has_handlers:
            raise DurableIdRequiredError(f"handler {name_of(handler)}")
        if takes_transaction(handler):
            raise InvalidHandlerError(
                f"handler {name_of(handler)} takes a transaction, which only a durable subscriber has; "
                'give it an id: subscribe(pattern, handler, id="…")'
            )
        checked = check_handler(handler)
        return Subscription(
            id=str(uuid.uuid4()),
            pattern=pattern,
            handler=checked,
            is_async=is_async_handler(checked),
            timeout=self._check_timeout(timeout),
            retry=override_policy(self._retry, retry),
            gate=Gate(self._clock),
            created_at=self._clock.now(),
            delivered=Delivered(self.upcasters, payload_type_of(checked)),
        )

    def subscriber(
        self,
        id: object,
        patterns: Sequence[str],
        receiver: object,
        *,
        timeout: float | None,
        retry: RetryOverride,
        start_from: StartFrom,
        checkpoint_mode: AnyCheckpointMode | None,
        mode: Mode,
        partitions: int,
        concurrency: int | None,
    ) -> Subscriber:
        """A subscription that outlives the process."""
        if checkpoint_mode is None:
            checkpoint_mode = self._config.checkpoint_mode
        check_checkpoint_mode("checkpoint_mode", checkpoint_mode)
        self._check_spread(receiver, mode, partitions, concurrency)
        checked_id = SubscriberId(check_subscriber_id(id))
        if partitions > 1:
            check_room_for_parts(checked_id)
        return Subscriber(
            id=checked_id,
            patterns=tuple(patterns),
            receiver=self._receiver(receiver),
            retry=override_policy(self._config.retry, retry),
            timeout=self._check_timeout(timeout),
            start_from=check_start_from(start_from),
            checkpoint_mode=checkpoint_mode,
            mode=mode,
            partitions=partitions,
            concurrency=DEFAULT_CONCURRENCY if concurrency is None else concurrency,
        )

    def _check_spread(self, receiver: object, mode: Mode, partitions: int, concurrency: int | None) -> None:
        """Refuse what can't be spread over several instances, or not in this way."""
        check_choice("mode", mode, "ordered", "competing")
        check_whole_number("partitions", partitions, at_least=1)
        if partitions > MOST_PARTITIONS:
            raise InvalidConfigError("partitions", partitions, f"{MOST_PARTITIONS} at most")
        is_competing = mode == "competing"
        if concurrency is not None:
            check_whole_number("concurrency", concurrency, at_least=1)
            if not is_competing:
                raise InvalidConfigError("concurrency", concurrency, 'mode="competing" with it')
        if is_competing and partitions > 1:
            raise InvalidConfigError("partitions", partitions, '1 with mode="competing", which has no order')
        if is_competing and self._store.outbox is None:
            raise InvalidConfigError("mode", mode, '"ordered": only on PostgreSQL workers can compete')
        if partitions > 1 and self._store.members is None:
            raise InvalidConfigError("partitions", partitions, "1: only PostgreSQL has partitions")
        if is_stateful(receiver) and is_competing:
            raise InvalidConfigError(
                "mode", mode, '"ordered": two workers would overwrite each other\'s state'
            )

    def _receiver(self, receiver: object) -> HandlerReceiver | StatefulReceiver | TransactionalReceiver:
        if is_stateful(receiver):
            return StatefulReceiver(receiver, self.upcasters, self._drafts, self._store.states)
        handler: Callable[..., Any] = receiver.on_event if is_observer(receiver) else receiver  # type: ignore[assignment]
        if takes_transaction(handler):
            return self._transactional_receiver(handler)
        check_handler(handler)
        threads = None if is_async_handler(handler) else self._threads
        return HandlerReceiver(handler, Delivered(self.upcasters, payload_type_of(handler)), threads)

    def _transactional_receiver(self, handler: Callable[..., Any]) -> TransactionalReceiver:
        is_async = self._store.has_async_transactions
        if is_async_handler(handler) and not is_async:
            raise InvalidHandlerError(
                f"handler {name_of(handler)} takes a transaction and is async; on this store the "
                "transaction is a sqlite3 connection: expected a plain function (def, not async def)"
            )
        if is_async and not is_async_handler(handler):
            raise InvalidHandlerError(
                f"handler {name_of(handler)} takes a transaction and is a plain function; on this store the "
                "transaction is an asyncpg connection: expected async def"
            )
        # With the event given it is checked like any other.
        check_handler(functools.partial(handler, object()))
        delivered = Delivered(self.upcasters, payload_type_of(handler))
        return TransactionalReceiver(handler, delivered, is_async=is_async)

    def _check_timeout(self, timeout: float | None) -> float:
        if timeout is None:
            return self._handler_timeout
        check_timeout("timeout", timeout)
        return timeout


def is_stateful(receiver: object) -> TypeGuard[StatefulObserver]:
    """Whether it is a projection, a saga or one of that kind."""
    return callable(getattr(receiver, "react", None)) and hasattr(receiver, "subscriber_id")


def is_observer(receiver: object) -> TypeGuard[EventObserver]:
    """Whether it is an object that takes events under an id of its own."""
    return callable(getattr(receiver, "on_event", None)) and hasattr(receiver, "subscriber_id")


def takes_transaction(handler: object) -> bool:
    """Whether it has a second parameter that must be given."""
    try:
        parameters = inspect.signature(handler).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    needed = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    return len(needed) == 2


def name_of(handler: object) -> str:
    """What to call it in a message."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return str(getattr(handler, "__qualname__", handler))


def check_durable_only(**given: object) -> None:
    """Refuse options that mean nothing without an id."""
    for name, value in given.items():
        if value is not None:
            raise InvalidConfigError(
                name, value, 'an id with it: subscribe(pattern, handler, id="…") makes a durable subscriber'
            )
