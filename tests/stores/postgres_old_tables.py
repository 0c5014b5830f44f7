"""The tables of specification 0002, as they were before postbus, and with numbers in several states."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from postbus.stores.postgres.pool import Connection

_EVENTS = """
CREATE SCHEMA IF NOT EXISTS postbus;
CREATE TABLE postbus.events (
    id UUID PRIMARY KEY,
    stream_id UUID NOT NULL,
    stream_version BIGINT NOT NULL,
    event_type VARCHAR(255) NOT NULL,
    data JSONB,
    created_at TIMESTAMPTZ NOT NULL,
    actor_id UUID,
    purger_id UUID,
    purged_at TIMESTAMPTZ,
    UNIQUE (stream_id, stream_version)
);
CREATE FUNCTION postbus.epoch_pg_notify_event() RETURNS TRIGGER AS $$
BEGIN
    PERFORM pg_notify(TG_ARGV[0], json_build_object('id', NEW.id, 'data', NEW.data)::text);
    RETURN NEW;
END;
$$ LANGUAGE plpgsql;
CREATE TRIGGER event_bus_notify_trigger AFTER INSERT ON postbus.events
FOR EACH ROW EXECUTE FUNCTION postbus.epoch_pg_notify_event('events');
"""
_SPECIFIED = """
CREATE SEQUENCE postbus.events_global_sequence_seq;
ALTER TABLE postbus.events ADD COLUMN global_sequence BIGINT;
ALTER TABLE postbus.events
    ALTER COLUMN global_sequence SET DEFAULT nextval('postbus.events_global_sequence_seq');
CREATE INDEX idx_events_global_sequence ON postbus.events (global_sequence);
ALTER SEQUENCE postbus.events_global_sequence_seq OWNED BY postbus.events.global_sequence;
"""
_BUS = """
CREATE TABLE postbus.event_bus_checkpoints (
    subscriber_id VARCHAR(255) PRIMARY KEY,
    last_global_sequence BIGINT NOT NULL,
    last_event_id UUID,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT NOW()
);
CREATE TABLE postbus.event_bus_dlq (
    id UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    subscriber_id VARCHAR(255) NOT NULL,
    event_id UUID NOT NULL,
    global_sequence BIGINT NOT NULL,
    error_message TEXT,
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    last_retry_at TIMESTAMPTZ,
    CONSTRAINT unique_subscriber_event UNIQUE (subscriber_id, event_id)
);
CREATE INDEX idx_dlq_subscriber ON postbus.event_bus_dlq (subscriber_id);
CREATE INDEX idx_dlq_created_at ON postbus.event_bus_dlq (created_at);
"""
_OUTBOX = """
CREATE TABLE postbus.event_bus_outbox (
    id BIGSERIAL PRIMARY KEY,
    subscriber_pool VARCHAR(255) NOT NULL,
    global_sequence BIGINT NOT NULL,
    event_id UUID NOT NULL,
    status VARCHAR(20) NOT NULL DEFAULT 'pending',
    locked_by VARCHAR(255),
    locked_at TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    UNIQUE (subscriber_pool, global_sequence)
);
"""
SHAPES = {
    "no numbers": _EVENTS,
    "no numbers, but a bus": _EVENTS + _BUS,
    "numbers may be missing": _EVENTS + _SPECIFIED + _BUS,
    "a bus with an outbox": _EVENTS + _SPECIFIED + _BUS + _OUTBOX,
    "numbers in a sequence that can't be used": _EVENTS
    + """
CREATE SEQUENCE postbus.events_global_sequence_seq AS integer START 7 INCREMENT 5 CACHE 20 CYCLE;
ALTER TABLE postbus.events ADD COLUMN global_sequence INTEGER;
""",
    "numbers by BIGSERIAL": _EVENTS
    + "ALTER TABLE postbus.events ADD COLUMN global_sequence BIGSERIAL UNIQUE;",
    "numbers by identity": _EVENTS
    + "ALTER TABLE postbus.events ADD COLUMN global_sequence BIGINT GENERATED ALWAYS AS IDENTITY;",
    "numbers as the key": _EVENTS
    + _SPECIFIED
    + """
ALTER TABLE postbus.events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (global_sequence), ADD UNIQUE (id);
""",
    "other columns of other types": _EVENTS
    + """
ALTER TABLE postbus.events
    ALTER created_at TYPE TIMESTAMP,
    ALTER stream_version TYPE INTEGER,
    ADD COLUMN correlation_id TEXT COLLATE "C",
    ADD COLUMN causation_id UUID NOT NULL DEFAULT gen_random_uuid(),
    ADD COLUMN metadata JSONB NOT NULL DEFAULT '{}',
    ADD COLUMN schema_version VARCHAR(10) NOT NULL DEFAULT '1';
ALTER TABLE postbus.events DROP CONSTRAINT events_pkey, ALTER id DROP NOT NULL;
""",
    "a bus of other types": _EVENTS
    + """
CREATE TABLE postbus.event_bus_checkpoints (
    subscriber_id TEXT CONSTRAINT mine PRIMARY KEY,
    last_global_sequence INTEGER,
    last_event_id UUID NOT NULL,
    updated_at TIMESTAMP
);
CREATE TABLE postbus.event_bus_dlq (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    subscriber_id TEXT NOT NULL,
    event_id UUID NOT NULL,
    global_sequence INTEGER NOT NULL,
    error_message VARCHAR(1000) NOT NULL DEFAULT '',
    retry_count BIGINT,
    created_at TIMESTAMP DEFAULT NOW(),
    last_retry_at TIMESTAMP,
    payload JSONB
);
CREATE TABLE postbus.event_bus_outbox (
    id BIGSERIAL CONSTRAINT mine_too PRIMARY KEY,
    subscriber_pool TEXT NOT NULL,
    global_sequence INTEGER NOT NULL,
    event_id UUID NOT NULL,
    status TEXT,
    locked_by UUID,
    locked_at TIMESTAMP,
    created_at TIMESTAMP
);
""",
}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def old_id(number: int) -> UUID:
    """An id that is easy to recognise."""
    return UUID(int=number)


async def make_old_tables(connection: Connection, shape: str) -> None:
    """The empty tables."""
    await connection.execute(SHAPES[shape])


async def insert_old_event(
    connection: Connection, number: int, seconds: float, data: str | None = "{}"
) -> None:
    """One event of its own stream, *seconds* after noon; with a number if the table gives one."""
    await connection.execute(
        "INSERT INTO postbus.events (id, stream_id, stream_version, event_type, data, created_at, actor_id) "
        "VALUES ($1, $2, 1, 'order.placed', $3, $4::timestamptz, $5)",
        *(old_id(number), old_id(1000 + number), data, NOON + timedelta(seconds=seconds), old_id(7)),
    )
