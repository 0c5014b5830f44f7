"""postbus worker: runs a bus with its subscribers until it is told to stop."""

from postbus.ops.cli.worker.command import worker

__all__ = ["worker"]
