"""A child process that loads a model and decodes several tokens at once, because that may crash the process.

``python -m streamco.engines.llamacpp.trial_child MODEL [tiles | plain]``; exit status 0 means that it works. A CPU that advertises AMX but
doesn't grant it kills this process and not its parent; so does a library that is called with structs of another layout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamco.engines.llamacpp.amx_probe import Repacking

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Load the model, decode several tokens at once, and return the exit status."""
    from streamco.engines.llamacpp.context import LlamaContext
    from streamco.engines.llamacpp.model import LlamaModel

    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an expected result, so keep no core file
    repack: Repacking = "tiles" if "tiles" in arguments[1:] else "plain" not in arguments[1:]
    model = LlamaModel(Path(arguments[0]), repack=repack)
    context = LlamaContext(model, cells=256, sequences=1, rows=16, threads=1)
    for position in range(16):
        context.add(position + 1, position, 0, wants_logits=position == 15)
    status = context.decode()
    context.close()
    model.close()
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
