"""``python -m mbsolve``."""

from __future__ import annotations

import sys

from mbsolve.cli import main

if __name__ == "__main__":
    sys.exit(main())
