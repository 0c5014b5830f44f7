"""An event loop that never rests, and a thread that it waits for."""

import asyncio
import threading
import time
from collections.abc import Callable

from postbus.stores.sqlite.nudge import _LONGEST_WAIT, _NUDGE_AFTER, Nudge
from tests.patience import PATIENCE


async def _keep_busy_until(is_over: Callable[[], bool]) -> None:
    """As an application does that always has something to compute."""
    deadline = time.monotonic() + PATIENCE
    while not is_over():
        assert time.monotonic() < deadline, "nothing came of it"
        sum(range(1_000))
        await asyncio.sleep(0)


async def test_a_thread_that_waits_for_its_disk_holds_the_loop_up_less_and_less() -> None:
    """To let go of the GIL does not help it; and with its first news it is trusted again."""
    is_waiting = True
    nudge = Nudge(asyncio.get_running_loop(), lambda: is_waiting, lambda: None)
    nudge.arm()
    await _keep_busy_until(lambda: nudge._wait == _LONGEST_WAIT)

    def tell() -> None:
        while is_waiting:
            if nudge._is_nudging:
                nudge.tell()
            # Lets go of the GIL, as a thread does that writes.
            time.sleep(0)

    def is_trusted() -> bool:
        # Whatever it tells is heard at once, so that the next nudge waits for news again.
        while nudge.heard_count < nudge._news_count:
            nudge.heard_count += 1
        return nudge._wait == _NUDGE_AFTER

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        await _keep_busy_until(is_trusted)
    finally:
        is_waiting = False
        thread.join()


async def test_what_a_nudge_brings_is_answered_before_the_loop_turns() -> None:
    """Each turn of a busy loop takes as long as the application likes."""
    loop = asyncio.get_running_loop()
    turn_count, answered_in = 0, list[int]()

    def answer() -> None:
        nudge.heard_count = nudge._news_count
        answered_in.append(turn_count)

    nudge, told_in = Nudge(loop, lambda: not answered_in, answer), list[int]()

    def tell() -> None:
        while not nudge._is_nudging:
            time.sleep(0)
        told_in.append(turn_count)
        nudge.tell()

    def turn() -> bool:
        nonlocal turn_count
        turn_count += 1
        return bool(answered_in)

    thread = threading.Thread(target=tell)
    thread.start()
    nudge.arm()
    await _keep_busy_until(turn)
    thread.join()

    assert answered_in == told_in
