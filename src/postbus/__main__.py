"""The postbus command as a module: python -m postbus."""

import sys

from postbus.ops.cli import main

if __name__ == "__main__":
    sys.exit(main())
