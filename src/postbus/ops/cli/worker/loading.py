"""The bus that "module:attribute" means: imported, made if it has to be, and checked."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import click

from postbus import EventBus

DEFAULT_ATTRIBUTE = "bus"
_EXPECTED = 'expected module:attribute, such as "app:bus" or "shop.events:bus"'


class BadAppError(click.ClickException):
    """What was given names no bus. Starting it again would not help."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class App:
    """Where the bus is: a module, and the attributes that lead to it."""

    module: str
    attributes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module}:{'.'.join(self.attributes)}"


def parse_app(text: str) -> App:
    """The module and the attribute that a user means.

    >>> str(parse_app("shop.events:make.bus")), str(parse_app("app"))
    ('shop.events:make.bus', 'app:bus')
    """
    module, colon, path = text.partition(":")
    if module.endswith(".py") or "/" in module:
        hint = module.removesuffix(".py").strip("./").replace("/", ".")
        raise BadAppError(
            f"{text!r} names a file; {_EXPECTED}; perhaps you mean {hint}:{path or DEFAULT_ATTRIBUTE}"
        )
    app = App(module, tuple(path.split(".")) if colon else (DEFAULT_ATTRIBUTE,))
    if not all(name.isidentifier() for name in (*module.split("."), *app.attributes)):
        raise BadAppError(f"{text!r} is not the name of a bus; {_EXPECTED}")
    return app


def find(app: App) -> object:
    """Import the module, from the current folder first, and follow the attributes. BadAppError."""
    folder = str(Path.cwd())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(app.module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{app.module}.".startswith(f"{error.name}."):
            raise BadAppError(
                f"there is no module {error.name!r}; looked in {folder} and the installed packages; "
                "start the worker in the folder of your application, or set PYTHONPATH"
            ) from None
        raise _failure(f"importing {app.module} failed", error) from error
    except (Exception, SystemExit) as error:
        raise _failure(f"importing {app.module} failed", error) from error
    return _follow(app, found)


async def make_bus(app: App, found: object) -> EventBus:
    """What was found, or what it returns when it is called. BadAppError."""
    if isinstance(found, EventBus) or not callable(found):
        return _check(app, found, "is")
    try:
        inspect.signature(found).bind()
    except ValueError:
        pass  # some built-ins have no signature to check
    except TypeError as error:
        raise BadAppError(
            f"{app} can't be called without arguments ({error}); expected a bus, or a function of no "
            "arguments that returns one"
        ) from None
    try:
        made = found()
        if inspect.isawaitable(made):
            made = await made
    except (Exception, SystemExit) as error:
        raise _failure(f"calling {app} failed", error) from error
    return _check(app, made, "returned")


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback from the first line of the user's own on."""
    traceback = error.__traceback__
    while traceback is not None and _is_machinery(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback


def _is_machinery(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def _follow(app: App, found: object) -> object:
    path = app.module
    for name in app.attributes:
        try:
            found = getattr(found, name)
        except AttributeError:
            raise BadAppError(f"{path} has no attribute {name!r}; {_buses_in(found, path)}") from None
        path = f"{path}{':' if path == app.module else '.'}{name}"
    return found


def _buses_in(found: object, path: str) -> str:
    names: Mapping[str, object] = getattr(found, "__dict__", {})
    buses = [f"{path}:{name}" for name, value in names.items() if isinstance(value, EventBus)]
    return f"it has {', '.join(buses)}" if buses else "expected a bus there, or a function that returns one"


def _check(app: App, found: object, verb: str) -> EventBus:
    if isinstance(found, EventBus):
        return found
    raise BadAppError(
        f"{app} {verb} {found!r:.80}, of type {type(found).__qualname__}; "
        "expected an EventBus, or a function of no arguments, async or not, that returns one"
    )


def _failure(what: str, error: BaseException) -> BadAppError:
    said = " ".join(str(error).split())
    return BadAppError(f"{what}: {type(error).__name__}{f': {said}' if said else ''}; mend the application")
