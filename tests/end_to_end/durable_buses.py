"""Buses with durable subscribers, each in a process of its own."""

import itertools
import json
from pathlib import Path

from tests.end_to_end.database import connect
from tests.end_to_end.durable_database import EFFECTS
from tests.end_to_end.processes import Child, RemoteBus, wait_until
from tests.patience import PATIENCE

AT_WORK = ("catching_up", "live")


class DurableBus(RemoteBus):
    """One of them; its handlers tell the history "<subscriber>-by-<name>"."""

    def __init__(self, path: Path, name: str, **subscribers: str) -> None:
        with connect(path) as connection:
            connection.execute(EFFECTS)
        options = json.dumps({"name": f"-by-{name}", "subscribers": subscribers})
        Child.__init__(self, "durable_bus", path, path.parent / "history", options, folder=path.parent)
        self._answers, self._commands = {}, itertools.count(1)

    def wait_for_state(self, id: str, *states: str, timeout: float = PATIENCE) -> None:
        """Ask until its subscriber is in one of the states."""
        wait_until(lambda: self.ask("state", id=id) in states, f"{id} is {' or '.join(states)}", timeout)
