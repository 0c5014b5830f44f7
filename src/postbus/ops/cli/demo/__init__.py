"""postbus demo: publish, retry, kill, recover, and prove that nothing was lost."""

from postbus.ops.cli.demo.command import demo

__all__ = ["demo"]
