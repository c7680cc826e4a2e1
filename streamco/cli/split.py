"""``streamco split``: writes the parts of a model for split inference, and prints their sizes."""

from __future__ import annotations

import argparse

from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
Cuts a GGUF model (architecture llama or qwen2) into three files. The device computes the first layers and the head, which also has the
tokenizer; the server computes the layers between them. No weight is changed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco split``."""
    parser.description = DESCRIPTION
    parser.add_argument("model", metavar="PATH", help="the GGUF file, or 'packaged'")
    parser.add_argument(
        "--input-layers", type=int, default=2, metavar="N", help="layers that the device computes first (default: %(default)s)"
    )
    parser.add_argument("--output", default=".", metavar="FOLDER", help="where the parts go (default: the current folder)")


def run(args: argparse.Namespace) -> int:
    """Write the parts; the exit code is 0.

    Raises:
        ConfigError: the parts can't be written; see also ``split_model``.
        EngineError: see ``split_model``.
    """
    from streamco.endpoints.model_files import path_of
    from streamco.engines.llamacpp.model_parts import split_model

    try:
        files = split_model(path_of(args.model), args.output, input_layers=args.input_layers)
    except OSError as exc:
        problem = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"--output: can't write the parts to {args.output}: {problem}") from exc
    for path, size, where in zip((files.input, files.middle, files.head), files.sizes, ("device", "server", "device"), strict=True):
        print_plain(f"{path}  {size / 1e6:.1f} MB  for the {where}")
    return 0
