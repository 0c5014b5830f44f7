"""Processes for children that are to end in any way: a fork is as good as a new one, and quicker.

Only for a child that has opened nothing and started no thread.
"""

import os
import traceback
from collections.abc import Callable

_STDOUT = 1


def tell(what: object) -> None:
    """One line to the parent, in one piece whoever else writes to the same pipe."""
    os.write(_STDOUT, f"{what}\n".encode())


def run_in_fork(run: Callable[[], object], on_fork: Callable[[int], None] = lambda _: None) -> int:
    """The exit code of a process that runs it, negative for a signal; *on_fork* learns which it is."""
    process = os.fork()
    if process == 0:
        exit_code = 1
        try:
            run()
            exit_code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(exit_code)
    on_fork(process)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)
