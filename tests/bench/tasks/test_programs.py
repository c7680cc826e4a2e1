"""HumanEval: from an answer to a program, and from a program to a score."""

from __future__ import annotations

import sys

import pytest

from bench.tasks.programs import complete_program, entry_point, passes
from bench.tasks.sandbox import Limits

PROMPT = '''from typing import List


def helper(x):
    return x + 1


def total(numbers: List[int]) -> int:
    """ Return the sum.
    >>> total([1, 2])
    3
    """
'''
TEST = "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\ncheck(total)"
RIGHT = "```python\ndef total(numbers: List[int]) -> int:\n    return sum(numbers)\n```"
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox needs Linux")


def test_the_function_is_the_last_one_of_the_prompt() -> None:
    assert entry_point(PROMPT) == "total"
    with pytest.raises(ValueError, match="expected the beginning of a function"):
        entry_point("x = 1")


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT,
        f"Here it is:\n\n{RIGHT}\n\nIt adds them. ```total([1])``` is 1.",
        "```\nimport math\n\ndef total(numbers):\n    return sum(numbers)\n```",
        "def total(numbers):\n    return sum(numbers)",
        "```python\ndef total(numbers):\n    return sum(numbers)",
        "    return sum(numbers)",
        "```python\n    return sum(numbers)\n```",
        "First:\n```python\nx = 1\n```\nThen:\n" + RIGHT,
    ],
)
@needs_linux
def test_an_answer_is_right_in_whatever_form_it_comes(answer: str) -> None:
    assert passes(answer, PROMPT, TEST, Limits(seconds=60.0)) == 1.0


@pytest.mark.parametrize(
    "answer", ["", "I can't.", "```python\ndef total(numbers):\n    return 3\n```", "```python\ndef total(numbers):\n    retu"]
)
@needs_linux
def test_an_answer_that_fails_an_example_is_worth_nothing(answer: str) -> None:
    assert passes(answer, PROMPT, TEST, Limits(seconds=60.0)) == 0.0


def test_imports_and_helpers_of_the_prompt_stay() -> None:
    assert complete_program(RIGHT, PROMPT).startswith("from typing import List\n\n\ndef helper(x):")
    assert complete_program(RIGHT, PROMPT).count("def total") == 1
