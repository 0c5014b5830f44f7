"""Whether dead letters have left, perhaps by another process: asked of two numbers instead of all rows."""


class Departures:
    """Whether dead letters have left: one that was retried is pending again, with a number that was passed.

    Each burial is in the store before it is counted here: what is missing there has left, because somebody
    has retried it, perhaps in another process, or resolved or deleted it. A burial that is not counted yet
    hides one departure until it is.
    """

    def __init__(self) -> None:
        self._seen: int | None = None

    def are_new(self, made_count: int, present_count: int) -> bool:
        """Whether more have left than at any time before; *made_count* is to be taken first."""
        return self._seen is None or made_count - present_count > self._seen

    def see(self, made_count: int, present_count: int) -> None:
        """Somebody has looked for those that are new, after counting."""
        self._seen = made_count - present_count
