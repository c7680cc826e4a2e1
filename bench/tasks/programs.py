"""HumanEval: the program that an answer amounts to, and whether it passes its tests (pass@1)."""

from __future__ import annotations

import re

from bench.tasks.sandbox import USUAL, Limits, run_program

__all__ = ["complete_program", "entry_point", "passes"]

_FENCED = re.compile(r"```[A-Za-z]*[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)


def passes(answer: str, prompt: str, test: str, limits: Limits = USUAL) -> float:
    """Return 1.0 if the function that the answer holds passes the test in the sandbox, else 0.0.

    Args:
        answer: the answer's text; code in a fence, or code alone.
        prompt: the beginning of the function: imports, signature and docstring.
        test: code that fails by an exception.
        limits: limits of the program.

    Raises:
        SandboxError: this machine can't run foreign programs safely.
    """
    return float(run_program(f"{complete_program(answer, prompt)}\n\n{test}\n", limits) == "passed")


def complete_program(answer: str, prompt: str) -> str:
    """Return the prompt's imports and helpers with the answer's function; an answer without the function completes the prompt's."""
    name = entry_point(prompt)
    blocks: list[str] = _FENCED.findall(answer) or [answer]
    code = next((block for block in blocks if re.search(rf"^\s*def {name}\b", block, re.MULTILINE)), None)
    if code is None:
        return prompt + blocks[0]
    before = prompt[: prompt.rindex(f"def {name}")]
    return f"{before}\n{code}"


def entry_point(prompt: str) -> str:
    """Return the name of the function that a prompt begins: the last one in it, because helpers come first.

    Raises:
        ValueError: there is none.
    """
    names = re.findall(r"^def (\w+)", prompt, re.MULTILINE)
    if not names:
        raise ValueError(f"prompt: expected the beginning of a function, got {prompt[:60]!r}")
    return str(names[-1])
