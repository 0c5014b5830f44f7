"""An application for `postbus worker`: a bus with subscribers, and nothing that runs when it is imported.

cd examples
postbus worker worker_app:bus --health 8080         on the file orders.db, or on DATABASE_URL
postbus publish order.placed '{"order": 42}' --url orders.db
curl http://127.0.0.1:8080/ready
"""

import logging
import os

from postbus import Event, EventBus

logger = logging.getLogger(__name__)

bus = EventBus(os.environ.get("DATABASE_URL", "orders.db"))


@bus.on("order.placed", id="mail")
async def send_mail(event: Event) -> None:
    """Called once for each order that is placed, in one process at a time."""
    logger.info("mail about order %s", event.payload["order"], extra={"event_id": event.id})


@bus.on("order.*", id="audit")
async def audit(event: Event) -> None:
    """Has a checkpoint of its own: it neither waits for the mails nor keeps them waiting."""
    logger.info("%s at %s", event.type, event.created_at.isoformat())
