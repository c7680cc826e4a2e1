"""Which questions are asked, and which of them a score may be fitted on. Fixed before anything was fitted.

The mix is what the six tasks of ``bench.tasks`` have with recorded scores of both models, and further short ones: 635 questions in all. The
fold of a question follows from the hash of its task and name, so that neither the order nor later questions change it.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["FOLDS", "MIX", "fold_of"]

MIX = {"csqa": 170, "sst2": 170, "xsum": 100, "gsm8k": 75, "humaneval": 74, "cnndm": 46}
"""Questions of each task, the first ones in the order of ``load_questions``, as far as they have scores."""

FOLDS = 5


def fold_of(task: str, question: str) -> int:
    """Return the fold of a question, 0 to 4: what predicts its score is fitted on the other folds."""
    return int(sha256(f"{task} {question}".encode()).hexdigest(), 16) % FOLDS
