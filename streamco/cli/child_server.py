"""``streamco serve`` as a child process that ends with its parent; ``streamco.testing.running_server`` starts it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from streamco.cli.main import main


def serve(options: Sequence[str]) -> int:
    """Serve until asked to stop or until the parent has ended, because stdin is a pipe that only the parent holds open."""
    threading.Thread(target=_stop_with_parent, name="streamco-parent", daemon=True).start()
    return main(["serve", *options])


def _stop_with_parent() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
