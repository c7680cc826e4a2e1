"""Which questions are asked, and which of them a score may be fitted on. Fixed before anything was fitted.

The mix is what the six tasks of ``bench.tasks`` have with recorded scores of both models, and further short questions: 635 in all. A question
is for fitting or for testing by the hash of its task and name, so that neither the order nor later questions change it.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["FOLDS", "MIX", "fold_of", "is_for_test"]

MIX = {"csqa": 170, "sst2": 170, "xsum": 100, "gsm8k": 75, "humaneval": 74, "cnndm": 46}
"""Questions of each task, the first ones in the order of ``load_questions``, as far as they have scores."""

FOLDS = 5


def fold_of(task: str, question: str) -> int:
    """Return the fold of a question, 0 to 4: what predicts its score is fitted on the other folds."""
    return int(sha256(f"{task} {question}".encode()).hexdigest(), 16) % FOLDS


def is_for_test(task: str, question: str) -> bool:
    """Return True for the half of the questions that nothing is fitted on, where a fit isn't by folds."""
    return int(sha256(f"half {task} {question}".encode()).hexdigest(), 16) % 2 == 1
