"""A worker that has done its work ends, whatever the application has left running."""

import logging
import os
import threading
import time

from postbus.ops.cli.worker.leash import GRACE_SECONDS

logger = logging.getLogger("postbus.worker")


def end_soon(code: int) -> None:
    """End the process with this exit code in a moment, unless it has ended by then.

    Python waits for every thread, such as one in which a handler's call to somewhere else never returns.
    """

    def end() -> None:
        time.sleep(GRACE_SECONDS)
        names = sorted(
            thread.name
            for thread in threading.enumerate()
            if not thread.daemon and thread is not threading.main_thread()
        )
        logger.warning("threads of the application do not end and are not waited for: %s", ", ".join(names))
        os._exit(code)

    threading.Thread(target=end, name="postbus end", daemon=True).start()
