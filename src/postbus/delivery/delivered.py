"""An event as a handler wants to see it: in today's version, and of the type it asks for."""

from typing import Any

from postbus.events import Event
from postbus.policy.payload_types import PayloadType
from postbus.policy.upcasting import Upcasters


class Delivered:
    """What one handler is called with."""

    __slots__ = ("_payload_type", "_upcasters")

    def __init__(self, upcasters: Upcasters, payload_type: PayloadType | None) -> None:
        self._upcasters, self._payload_type = upcasters, payload_type

    @property
    def is_as_stored(self) -> bool:
        """Whether the handler gets every event just as it is in the log."""
        return self._payload_type is None and not self._upcasters.steps

    def of(self, event: Event) -> Any:
        """What to call the handler with."""
        # Asked here: most types have no upcasters, and a call for each event is one too many.
        if event.type in self._upcasters.steps:
            event = self._upcasters.upcast(event)
        return event if self._payload_type is None else self._payload_type.convert(event)
