"""Every exception of postbus.

PostbusError
├── EventBusShutdownError      the bus was shut down: make a new one
├── BusLoopError               the bus belongs to another event loop or process
├── InvalidPayloadError        the payload is not JSON: nothing was stored
├── InvalidMetadataError       metadata is not a dict of strings: nothing was stored
├── InvalidEventTypeError      the event type is not a dotted name
├── InvalidEventIdError        the event id is not a usable string
├── InvalidEventFieldError     a stream, version or other field of the event is not usable
├── InvalidPatternError        the subscription pattern is not a dotted name with "*" segments
├── InvalidHandlerError        the handler is not a callable that takes one event
├── InvalidConfigError         a setting is out of its range
├── InvalidTargetError         the target is no path, URL or store
├── MissingExtraError          a package is needed that comes with an extra of postbus
├── InvalidPageError           limit, offset or age is out of its range
├── InvalidSubscriberIdError   the id of a durable subscriber is not a usable string
├── DuplicateSubscriberError   this bus has a durable subscriber with this id already
├── SubscriptionNotFoundError  this bus has no durable subscriber with this id
├── WaitsForItselfError        a handler waits for what waits for it: its subscriber, or an idle bus
├── SubscriptionStoppedError   the subscriber was stopped before it got where it was waited for
├── EventNotFoundError         no event has this id
├── NotADeadLetterError        the event is not a dead letter
├── InvalidObserverError       a projection, saga or other observer is not fully or not rightly defined
├── InvalidStateError          a state or its key can't be stored
├── StateTypeError             the stored state does not fit the type of its state store
├── PublishedTooLateError      a saga published after it had handled its event
├── PayloadTypeError           the stored payload does not fit the type that the handler asks for
│   └── UpcastError            an upcaster raised on the stored payload
├── TransactionEndedError      a transactional handler ended the transaction it was lent
├── TransactionFailedError     a transactional handler went on after a statement of its own had failed
├── DurableIdRequiredError     on this store every subscription needs an id
├── NoForeignTransactionError  this store can't append in the caller's own transaction
└── StoreError                 the database refused or failed
    ├── WrongExpectedVersionError  another writer appended to the stream first: nothing was stored
    ├── SubscriberFencedError  another instance has taken the subscriber over
    ├── LayoutChangedError     the subscriber is split into another number of partitions
    ├── StoreClosedError       the store was closed
    ├── StoreUnavailableError  the database can't be reached at the moment
    ├── UnsoundLogError        on this table, sequence or server an event could be passed over
    ├── MigrationNeededError   the schema is not there or too old, and we may not change it
    ├── StoreBusyError         another process held the database for too long
    ├── StoreFullError         the disk is full: nothing was stored
    ├── StoreReadOnlyError     the file, its folder or its filesystem can't be written
    ├── FileReplacedError      the file was deleted or replaced while it was open
    ├── NotADatabaseError      the path is no SQLite database
    ├── SchemaTooNewError      the file was written by a newer postbus
    └── DuplicateEventIdError  the id factory gave an id that is taken
"""


class PostbusError(Exception):
    """Whatever postbus raises on purpose; catch this to catch all of it."""

    def __reduce__(self) -> tuple[object, ...]:
        # By itself Python would call the constructor with the message, which it makes of other values.
        return _rebuild, (type(self), self.args), vars(self)


class EventBusShutdownError(PostbusError):
    """The bus was shut down and takes no new work: make a new EventBus on the same target."""

    def __init__(self, action: str) -> None:
        super().__init__(f"cannot {action}: this bus was shut down; make a new EventBus on the same target")
        self.action = action


class BusLoopError(PostbusError):
    """A bus lives in one event loop of one process: make one bus for each."""


class InvalidPayloadError(PostbusError):
    """The payload is not JSON. Nothing was stored; convert the value that *path* names."""

    def __init__(self, found: str, expected: str, path: str = "payload") -> None:
        super().__init__(f"{path} {found}; expected {expected}; nothing was stored")
        self.found, self.expected, self.path = found, expected, path


class InvalidMetadataError(PostbusError):
    """Metadata is a dict of strings. Nothing was stored."""


class InvalidEventTypeError(PostbusError):
    """An event type is a name of dot-separated segments, such as "order.placed"."""

    def __init__(self, event_type: object, reason: str) -> None:
        super().__init__(
            f"event type {_shorten(event_type)} {reason}; "
            'expected dot-separated names such as "order.placed"; nothing was stored'
        )
        self.event_type, self.reason = event_type, reason


class InvalidEventIdError(PostbusError):
    """An event id is a string of 1 to 255 printable characters. Nothing was stored."""

    def __init__(self, event_id: object, reason: str) -> None:
        super().__init__(
            f"event id {_shorten(event_id)} {reason}; "
            "expected a string of 1 to 255 printable characters; nothing was stored"
        )
        self.event_id, self.reason = event_id, reason


class InvalidEventFieldError(PostbusError):
    """A stream id, a version or another field of the event is not usable. Nothing was stored."""

    def __init__(self, name: str, found: object, expected: str) -> None:
        super().__init__(f"{name} is {_shorten(found)}; expected {expected}; nothing was stored")
        self.name, self.found, self.expected = name, found, expected


class InvalidPatternError(PostbusError):
    """A pattern is an event type in which "*" may stand for whole segments."""

    def __init__(self, pattern: object, reason: str) -> None:
        super().__init__(
            f"pattern {_shorten(pattern)} {reason}; "
            'expected an event type in which "*" may stand for exactly one segment, '
            'such as "order.*", or a lone "*" for every event'
        )
        self.pattern, self.reason = pattern, reason


class InvalidHandlerError(PostbusError):
    """A handler is a function, sync or async, that takes one event."""


class InvalidConfigError(PostbusError):
    """A setting is out of its range."""

    def __init__(self, name: str, found: object, expected: str) -> None:
        super().__init__(f"{name} is {_shorten(found)}; expected {expected}")
        self.name, self.found, self.expected = name, found, expected


class InvalidTargetError(PostbusError):
    """The target of a bus is a path, a URL or a store."""

    def __init__(
        self,
        target: object,
        reason: str,
        expected: str = 'a path such as "events.db", a URL such as "sqlite:///events.db" or '
        '"postgresql://localhost/app", "memory:" or a store',
    ) -> None:
        # Bytes may be a DSN that was read from a file, with its password.
        shown = "b'…'" if isinstance(target, bytes) else _shorten(target)
        super().__init__(f"target {shown} {reason}; expected {expected}")
        self.target, self.reason, self.expected = target, reason, expected


class MissingExtraError(PostbusError):
    """What was asked for needs a package that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs a package that is not installed; run: pip install "postbus[{extra}]"')
        self.extra = extra


class InvalidPageError(PostbusError):
    """A limit, an offset or an age is out of its range."""

    def __init__(self, name: str, found: object, expected: str) -> None:
        super().__init__(f"{name} is {_shorten(found)}; expected {expected}")
        self.name, self.found, self.expected = name, found, expected


class InvalidSubscriberIdError(PostbusError):
    """The id of a durable subscriber is a string of 1 to 255 printable characters."""

    def __init__(self, subscriber_id: object, reason: str) -> None:
        super().__init__(
            f"subscriber id {_shorten(subscriber_id)} {reason}; expected a string of 1 to 255 printable "
            'characters that stays the same from start to start, such as "projection:order-list"'
        )
        self.subscriber_id, self.reason = subscriber_id, reason


class DuplicateSubscriberError(PostbusError):
    """A durable subscriber's id is its identity: give each one an id of its own."""

    def __init__(self, subscriber_id: str) -> None:
        super().__init__(
            f"this bus has a durable subscriber with the id {subscriber_id!r} already; "
            "give this one another id, or unsubscribe the other first"
        )
        self.subscriber_id = subscriber_id


class SubscriptionNotFoundError(PostbusError):
    """The bus has no durable subscriber with this id: subscribe it first."""

    def __init__(self, subscriber_id: str) -> None:
        super().__init__(
            f"this bus has no durable subscriber with the id {_shorten(subscriber_id)}; "
            "only subscriptions that were made with id=… or an observer have a handle"
        )
        self.subscriber_id = subscriber_id


class SubscriptionStoppedError(PostbusError):
    """The subscriber was stopped before it got where it was waited for."""

    def __init__(self, subscriber_id: str) -> None:
        super().__init__(
            f"subscriber {subscriber_id!r} was stopped before it got there; "
            "what it has not processed is delivered when it is subscribed again"
        )
        self.subscriber_id = subscriber_id


class InvalidObserverError(PostbusError):
    """A projection, saga or other observer lacks something, or has something that is not usable."""

    def __init__(self, observer: str, found: str, expected: str) -> None:
        super().__init__(f"{observer} {found}; expected {expected}")
        self.observer, self.found, self.expected = observer, found, expected


class InvalidStateError(PostbusError):
    """A state is JSON of its store's type, a key 1 to 255 printable characters. Nothing was stored."""

    def __init__(self, store_name: str, found: str, expected: str) -> None:
        super().__init__(f"state store {store_name!r}: {found}; expected {expected}; nothing was stored")
        self.store_name, self.found, self.expected = store_name, found, expected


class StateTypeError(PostbusError):
    """The stored state does not fit the type of its state store: give new fields a default."""

    def __init__(self, store_name: str, expected: str, reason: str) -> None:
        super().__init__(
            f"a state in state store {store_name!r} is no {expected}: {reason}; "
            "give new fields a default, or build the states anew in a state store of another name"
        )
        self.store_name, self.expected, self.reason = store_name, expected, reason


class PublishedTooLateError(PostbusError):
    """A saga publishes while it handles an event: await whatever publishes before handle returns."""

    def __init__(self, event_type: str) -> None:
        super().__init__(
            f"cannot publish {_shorten(event_type)}: the saga has handled its event already, and what it "
            "publishes is stored together with its state; await what publishes before handle returns"
        )
        self.event_type = event_type


class WaitsForItselfError(PostbusError):
    """A handler can't wait for its own subscriber, or for the bus to be idle: that waits for the handler."""

    def __init__(self, subscriber_id: str, event_id: str | None = None) -> None:
        """A handler without an id has no *subscriber_id*, but "", and the *event_id* of what it handles."""
        waiting, waited_for = f"the handler of {subscriber_id!r}", "for its own subscriber, which waits"
        if event_id is not None:
            waiting, waited_for = f"a handler of event {event_id!r}", "until the bus is idle, which waits"
        super().__init__(f"{waiting} can't wait {waited_for} for the handler to end; wait in another task")
        self.subscriber_id, self.event_id = subscriber_id, event_id


class PayloadTypeError(PostbusError):
    """The stored payload does not fit the type that the handler asks for: register an upcaster."""

    def __init__(self, event_type: str, expected: str, reason: str) -> None:
        super().__init__(
            f"the payload of {event_type} is no {expected}: {reason}; "
            "change the handler's annotation, or register an upcaster for old payloads"
        )
        self.event_type, self.expected, self.reason = event_type, expected, reason


class UpcastError(PayloadTypeError):
    """An upcaster raised: mend it, then retry the dead letter."""

    def __init__(self, event_type: str, from_version: int, reason: str) -> None:
        PostbusError.__init__(
            self,
            f"the upcaster of {event_type} from version {from_version} raised {reason}; "
            "mend it, then retry the dead letter",
        )
        self.event_type, self.from_version, self.reason = event_type, from_version, reason
        self.expected = f"payload of version {from_version}"


class TransactionEndedError(PostbusError):
    """A transactional handler must leave BEGIN, COMMIT and ROLLBACK to postbus."""

    def __init__(self, subscriber_id: str) -> None:
        super().__init__(
            f"the handler of {subscriber_id!r} ended the transaction it was lent; "
            "leave commit() and rollback() to postbus: raise an exception to undo"
        )
        self.subscriber_id = subscriber_id


class TransactionFailedError(PostbusError):
    """A failed statement spoils its whole transaction: put one that may fail into a nested transaction."""

    def __init__(self, subscriber_id: str) -> None:
        super().__init__(
            f"the handler of {subscriber_id!r} went on after a statement of its own had failed, which undoes "
            "the whole transaction; put a statement that may fail into `async with connection.transaction():`"
        )
        self.subscriber_id = subscriber_id


class DurableIdRequiredError(PostbusError):
    """Without an id a subscription lives with its process, which this store knows nothing of."""

    def __init__(self, subscription: str) -> None:
        super().__init__(
            f"{subscription} has no id, and on PostgreSQL every subscription is durable and needs one; "
            'give it an id that stays the same from start to start: subscribe(pattern, handler, id="…")'
        )
        self.subscription = subscription


class NoForeignTransactionError(PostbusError):
    """This store can't append in the caller's own transaction. Nothing was stored."""

    def __init__(self, store: str) -> None:
        super().__init__(
            f"{store} can't append in a transaction of the caller's; leave connection= out, or let a "
            "transactional subscriber write both; nothing was stored"
        )


class EventNotFoundError(PostbusError):
    """No event has this id: it was never stored here, or it was purged."""

    def __init__(self, event_id: str) -> None:
        super().__init__(
            f"no event has the id {_shorten(event_id)} in this store; check the id and the store's path"
        )
        self.event_id = event_id


class NotADeadLetterError(PostbusError):
    """The event exists and is not a dead letter, so there is nothing to retry."""

    def __init__(self, event_id: str, status: str) -> None:
        super().__init__(
            f"event {event_id!r} is {str(status)!r} and not a dead letter; bus.store.get() shows any event"
        )
        self.event_id, self.status = event_id, status


class StoreError(PostbusError):
    """The database refused or failed; the message carries its words."""


class WrongExpectedVersionError(StoreError):
    """Another writer appended first: reload the stream and decide again. Nothing was stored."""

    def __init__(self, stream_id: str, expected: int, actual: int) -> None:
        super().__init__(
            f"stream {stream_id!r} is at version {actual}, expected {expected}; nothing was stored; "
            "read the stream again and decide anew"
        )
        self.stream_id, self.expected, self.actual = stream_id, expected, actual


class SubscriberFencedError(StoreError):
    """Another instance has taken the subscriber over: nothing was written, and this instance steps back."""

    def __init__(self, subscriber_id: str, epoch: int) -> None:
        super().__init__(
            f"subscriber {subscriber_id!r} has another owner since epoch {epoch}, or its server is another "
            "one; nothing was written"
        )
        self.subscriber_id, self.epoch = subscriber_id, epoch


class LayoutChangedError(StoreError):
    """The subscriber is split into another number of partitions: this instance waits, or changes that."""

    def __init__(self, subscriber_id: str) -> None:
        super().__init__(
            f"subscriber {subscriber_id!r} is split into another number of partitions at present; that is "
            "changed when no instance is left that runs it so: stop those with another partitions="
        )
        self.subscriber_id = subscriber_id


class StoreClosedError(StoreError):
    """The store was closed: open a new one."""


class StoreUnavailableError(StoreError):
    """The database can't be reached at the moment, or the connection broke: try again."""


class UnsoundLogError(StoreError):
    """On this table, sequence or server an event could be passed over: the message says how to repair it."""


class MigrationNeededError(StoreError):
    """The schema is missing or too old and this role may not change it: run `postbus migrate`."""


class StoreBusyError(StoreError):
    """Another process held the database for longer than we wait. Nothing was stored: try again."""


class StoreFullError(StoreError):
    """The disk or the database is full. Nothing was stored: make room and publish again."""


class StoreReadOnlyError(StoreError):
    """The file, its folder or its filesystem can't be written by this process."""


class FileReplacedError(StoreError):
    """The file, or one beside it, was deleted or replaced while it was open: nothing was stored.

    End every process that has it open, see that the file is the right one, and start again.
    """


class NotADatabaseError(StoreError):
    """The path is no SQLite database: it is another kind of file, or a directory."""


class SchemaTooNewError(StoreError):
    """A newer postbus wrote this file: upgrade postbus; the file was left as it is."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has schema version {found} and this postbus knows up to {known}; "
            "upgrade postbus; it was left as it is"
        )
        self.path, self.found, self.known = path, found, known


class DuplicateEventIdError(StoreError):
    """The id factory gave an id that is already stored. Nothing was stored: give unique ids."""


def _rebuild(kind: type[PostbusError], args: tuple[object, ...]) -> PostbusError:
    """An error that has its message already; pickle and copy give it its attributes after this."""
    return kind.__new__(kind, *args)


def _shorten(value: object, limit: int = 80) -> str:
    """What was found, fit for one line of a message."""
    try:
        text = repr(value)
    except Exception:
        # A number of thousands of digits, or an object of the user's.
        text = f"a value of type {type(value).__qualname__}"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
