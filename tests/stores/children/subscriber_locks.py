"""A process that takes and releases the locks of durable subscribers as its parent says.

Argument: the database. A line is "acquire NAME" or "release NAME"; every one is answered.
"""

import asyncio
import sys
from pathlib import Path

from postbus.events import SubscriberId
from postbus.stores.sqlite.subscriber_locks import FileSubscriberLocks


def main(database: str) -> None:
    locks = FileSubscriberLocks(Path(database))
    for line in sys.stdin:
        command, name = line.split()
        if command == "acquire":
            print(asyncio.run(locks.try_acquire(SubscriberId(name))), flush=True)
        else:
            locks.release(SubscriberId(name))
            print("released", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
