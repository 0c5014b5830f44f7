"""A full disk: the publisher is told, nothing is stored in part, and with room the same bus goes on."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.children.remote_bus import BEGAN
from tests.end_to_end.history import DELIVERED, History
from tests.end_to_end.processes import RemoteBus, RemoteError, wait_until

HANDLERS = {"ok.*": "ok", "slow.*": "slow", "slow-poison.*": "slow_poison"}
_MOUNT = 'mount -t tmpfs -o size=2m none "$0" && exec "$@"'


class Disk:
    """A disk that can be filled, and the bus on it."""

    def __init__(self, bus: RemoteBus) -> None:
        self.bus = bus

    def fill(self) -> None:
        self.bus.ask("fill_disk")

    def make_room(self) -> None:
        self.bus.ask("make_room")


class LimitedDisk(Disk):
    """No disk in truth, but a limit to the size of files, which any user may set."""

    def fill(self) -> None:
        # Less than the log has already: it can't grow, and the history is far smaller.
        self.bus.ask("limit_file_size", size=self.bus.ask("log_size"))

    def make_room(self) -> None:
        self.bus.ask("limit_file_size", size=None)


def find_mount_command(folder: Path) -> list[str] | None:
    """What gives a process a small filesystem of its own, if this user may do so on this system."""
    for flags in (["--mount"], ["--mount", "--map-root-user"]):
        command = ["unshare", *flags, "sh", "-c", _MOUNT, str(folder)]
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True).returncode == 0
        ):
            return command
    return None


KINDS = ["limited file size", *(["small filesystem"] if find_mount_command(Path(__file__).parent) else [])]


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    is_limited = request.param == "limited file size"
    prefix = [] if is_limited else find_mount_command(folder) or []
    with RemoteBus(folder / "events.db", tmp_path, prefix=prefix, handlers=HANDLERS) as bus:
        yield LimitedDisk(bus) if is_limited else Disk(bus)
    assert sys.platform != "linux" or is_limited or not list(folder.iterdir()), "the mount was not used"


def refused(call: Callable[[], object]) -> RemoteError:
    with pytest.raises(RemoteError) as error:
        call()
    assert error.value.name in {"StoreFullError", "StoreError"}, error.value
    assert "events.db" in error.value.message
    return error.value


def complaints(bus: RemoteBus, words: str) -> list[str]:
    return [message for message in bus.ask("complaints") if words in message]


def test_a_full_disk_refuses_and_goes_on_once_there_is_room(disk: Disk, history: History) -> None:
    """Events whose end could not be written are finished by the same bus, without a restart."""
    bus = disk.bus
    bus.ask("start")
    before = [bus.ask("publish", type="ok.before", payload="x" * 1000) for _ in range(50)]
    slow, poison = bus.begin("publish", type="slow.event"), bus.begin("publish", type="slow-poison.event")
    wait_until(lambda: len(history.of(BEGAN)) == 2, "both have begun")
    in_flight = set(history.of(BEGAN))
    wait_until(lambda: list(bus.ask("statuses").values()).count("done") == len(before), "the others are done")
    disk.fill()
    errors = [refused(lambda: bus.ask("publish", type="ok.refused", payload="x" * 1000)) for _ in range(3)]
    together = [bus.begin("publish", type="ok.refused", payload="x" * 1000) for _ in range(20)]
    errors += [refused(lambda number=number: bus.answer(number)) for number in together]  # type: ignore[misc]
    errors.append(refused(lambda: bus.ask("publish_many", types=["ok.refused"] * 20)))
    bus.ask("release")
    wait_until(lambda: in_flight & set(history.of(DELIVERED)), "the slow handler has ended")
    wait_until(lambda: complaints(bus, "events are done"), "the bus can't write that it has")
    wait_until(
        lambda: complaints(bus, "outcome of an attempt"), "the bus can't write that the other has failed"
    )
    while_full = bus.ask("statuses")
    disk.make_room()
    after = bus.ask("publish", type="ok.after")
    many = bus.ask("publish_many", types=["ok.after"] * 20)
    slow_id, poison_id = bus.answer(slow), bus.answer(poison)
    bus.ask("idle")
    wait_until(lambda: set(bus.ask("statuses").values()) <= {"done", "dlq"}, "everything is settled")
    stored = bus.ask("statuses")
    dead_letter = bus.ask("event", event_id=poison_id)
    bus.ask("check_database")
    bus.ask("shutdown")

    assert {slow_id, poison_id} == in_flight
    assert while_full == {**dict.fromkeys(before, "done"), **dict.fromkeys(in_flight, "processing")}
    assert stored == {**dict.fromkeys([*before, slow_id, after, *many], "done"), poison_id: "dlq"}
    assert dead_letter["errors"] == ["ValueError: nobody can process this"] * 2
    assert set(history.acknowledged()) == set(stored)
    assert set(history.of(DELIVERED).values()) == {1}
    assert all(error.name == "StoreFullError" for error in errors) or isinstance(disk, LimitedDisk)


def test_a_bus_starts_on_a_full_disk_once_there_is_room(disk: Disk) -> None:
    """The start fails with a clear error; the same bus can be started again."""
    bus = disk.bus
    if isinstance(disk, LimitedDisk):
        bus.ask("limit_file_size", size=0)
    else:
        disk.fill()
    refused(lambda: bus.ask("start"))
    disk.make_room()
    bus.ask("start")
    event_id = bus.ask("publish", type="ok.after")
    bus.ask("idle")

    assert bus.ask("event", event_id=event_id)["status"] == "done"
    bus.ask("check_database")
