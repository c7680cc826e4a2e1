"""Default prompts for a calibration, which are short instructions of several kinds, and prompts from a file."""

from __future__ import annotations

from pathlib import Path

from streamco.errors import ConfigError

__all__ = ["PROMPTS", "read_prompts"]

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Name five things to do on a rainy afternoon, each with a reason.",
    "Summarise what a battery does, for somebody who has never seen one.",
    "A train leaves at 9:40 and arrives at 13:05. How long does it take, and how do you know?",
    "Write a polite e-mail that moves a meeting from Tuesday to Thursday.",
    "What is the difference between a list and a dictionary in Python? Give an example of each.",
    "Describe the taste of coffee to somebody who only drinks tea.",
    "List three rivers of Europe and say where each of them rises.",
    "Give me a simple recipe for bread, step by step.",
    "Is it better to learn one language well or three a little? Argue for one side.",
    "Rewrite this in plain words: the implementation was subsequently discontinued owing to insufficient utilisation.",
)

_MAX_BYTES = 1 << 20


def read_prompts(path: Path) -> list[str]:
    """Read a file of prompts, one per line; empty lines are skipped.

    Raises:
        ConfigError: the file can't be read, isn't UTF-8, is larger than 1 MiB, or has no prompt.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a text file of prompts, got: {error}") from error
    prompts = [line.strip() for line in text.splitlines() if line.strip()]
    if len(data) > _MAX_BYTES or not prompts:
        raise ConfigError(f"{path}: expected 1 prompt or more in at most {_MAX_BYTES} bytes, got {len(prompts)} in {len(data)}")
    return prompts
