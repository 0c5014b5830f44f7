"""Driver errors become errors of postbus, in this one place."""

from types import TracebackType

import asyncpg

from postbus.errors import (
    MigrationNeededError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)

_UNAVAILABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    # A command that timed out raises TimeoutError, which is one.
    OSError,
)
_BUSY = (
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
)
_READ_ONLY = (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError)
_NO_TABLES = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
)
# Whatever can come of talking to a server.
DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# An InterfaceError has no code: these are the words for a connection or a pool that is gone.
_GONE = ("closed", "closing", "released back to the pool")


def translate(error: BaseException) -> StoreError | None:
    """What postbus raises for it; None: it is neither the driver's nor the network's."""
    if isinstance(error, asyncpg.PostgresError):
        return _translate_answer(error)
    if isinstance(error, asyncpg.InterfaceError):
        if any(word in str(error) for word in _GONE):
            return _unavailable(error)
        return StoreError(f"the driver refused a statement: {error}")
    # The driver loses count of its own state when a connection breaks in the middle of a statement.
    if isinstance(error, (*_UNAVAILABLE, asyncpg.InternalClientError)):
        return _unavailable(error)
    return None


def _translate_answer(error: asyncpg.PostgresError) -> StoreError:
    words = f"{error} (SQLSTATE {error.sqlstate})"
    if isinstance(error, _BUSY):
        return StoreBusyError(f"the database was busy: {words}; nothing was stored; try again")
    if isinstance(error, _UNAVAILABLE):
        return _unavailable(error)
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFullError(f"the disk of the database is full: {words}; nothing was stored; make room")
    if isinstance(error, _READ_ONLY):
        return StoreReadOnlyError(f"the database can't be written by this role or server: {words}")
    if isinstance(error, _NO_TABLES):
        return MigrationNeededError(
            f"the schema is not there or not up to date: {words}; run `postbus migrate`, and check that "
            "schema= is the same everywhere"
        )
    return StoreError(f"the database refused: {words}")


def _unavailable(error: BaseException) -> StoreUnavailableError:
    reason = str(error) or "no answer within the time limit"
    return StoreUnavailableError(f"the database can't be reached at the moment: {reason}; try again")


class _Translated:
    """One object for all: entering it thousands of times a second costs next to nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and (translation := translate(error)) is not None:
            raise translation from error


_TRANSLATED = _Translated()


def translated() -> _Translated:
    """`with translated():` raises what asyncpg and the network raise as a StoreError that says what to do."""
    return _TRANSLATED
