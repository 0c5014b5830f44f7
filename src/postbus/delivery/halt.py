"""Whether a durable subscriber is to deliver nothing more for now."""


class Halt:
    """An attribute and no call, because it is read after every event."""

    __slots__ = ("is_due",)

    def __init__(self) -> None:
        self.is_due = False
        """Whether it is to pause, to stop, or may be active elsewhere by now."""
