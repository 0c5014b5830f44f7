"""An event loop that counts its turns and cancels a task after the k-th."""

import asyncio


class StepLoop(asyncio.SelectorEventLoop):
    """The loop itself is the standard one."""

    def __init__(self) -> None:
        super().__init__()
        self._victim: asyncio.Task[object] | None = None
        self._turns_left = 0

    def cancel_after(self, turn_count: int, victim: "asyncio.Task[object]") -> None:
        """Cancel *victim* when so many turns have passed, if it is not done by then."""
        self._victim, self._turns_left = victim, turn_count

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        if self._victim is not None:
            self._turns_left -= 1
            if self._turns_left == 0:
                self._victim.cancel()
                self._victim = None
