"""The child process of the AMX probe: loads a model with repacked weights and decodes several tokens at once.

``amx_probe`` runs it as ``python -m streamco.engines.llamacpp.amx_child MODEL [tiles]``; exit status 0 means that these kernels work. A
CPU that advertises AMX and does not grant it kills this process and not its parent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Load the model with repacking, decode several tokens at once, and return the exit status."""
    from streamco.engines.llamacpp.context import LlamaContext
    from streamco.engines.llamacpp.model import LlamaModel

    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an expected answer: keep no core file
    model = LlamaModel(Path(arguments[0]), repack="tiles" if "tiles" in arguments[1:] else True)
    context = LlamaContext(model, cells=256, sequences=1, rows=16, threads=1)
    for position in range(16):
        context.add(position + 1, position, 0, wants_logits=position == 15)
    status = context.decode()
    context.close()
    model.close()
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
