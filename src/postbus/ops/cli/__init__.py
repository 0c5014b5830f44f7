"""The command line. Importing it needs no extra: only running a command does."""

import sys
from collections.abc import Sequence

INSTALL_COMMAND = "pip install 'postbus[cli]'"
_EXTRA = ("click", "rich")
_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that *arguments* name, by default those of this process; its exit code."""
    try:
        from postbus.ops.cli.group import run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in _EXTRA:
            raise
        print(f"The postbus command needs {' and '.join(_EXTRA)}. Install them with:", file=sys.stderr)
        print(INSTALL_COMMAND, file=sys.stderr)
        return _USAGE
    return run(arguments)
