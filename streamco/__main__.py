"""Makes ``python -m streamco`` the same as the ``streamco`` command."""

from __future__ import annotations

import sys

from streamco.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
