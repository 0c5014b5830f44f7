"""postbus bench: what a bus gets done on this machine, beside the raw driver."""

from postbus.ops.cli.bench.command import bench

__all__ = ["bench"]
