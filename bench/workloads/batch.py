"""publish_many of 1000 events at a time."""

from dataclasses import replace

from postbus.ops.bench.model import Column
from postbus.ops.bench.sqlite import batch

WORKLOAD = replace(batch.WORKLOAD, columns=(batch.RATE, Column("cpu", "CPU per event", "µs")))
