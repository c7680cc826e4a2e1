"""The picture of docs/research/quality.md: how much of the quality gap each score recovers, and how far a learned one can be believed.

``python -m bench.papers.gate.plot`` draws it from what is packaged (needs matplotlib).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from bench.papers.gate.__main__ import scores_of
from bench.papers.gate.ratings import good_answers, held_out, perplexity, ratings_of
from bench.papers.gate.recording import BY_DEVICE, read_answers
from bench.papers.gate.routing import Floats, gains_of, recovered

__all__ = ["FIGURE", "main"]

FIGURE = Path("docs/research/gate_curves.png")
SCORES = (
    "oracle",
    "learned, 16 tokens and task",
    "task known, then perplexity",
    "perplexity, 16 tokens",
    "learned on other tasks, 16 tokens",
)
RULE = "rated leniently"
_PARTS = 8


def main() -> None:
    """Draw the picture."""
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.4))
    for panel, (device, path) in zip(panels, BY_DEVICE.items(), strict=False):
        answers = read_answers(path)
        gains, scores = gains_of(answers), scores_of(answers)
        for name in SCORES:
            shares, gap = recovered(scores[name], gains, np.ones((1, len(gains))))
            panel.plot(shares[0], gap[0], label=name, linewidth=1.4)
        panel.plot([0, 1], [0, 1], color="grey", linestyle=":", label="by chance")
        panel.set(title=f"{device} before 1.5B", xlabel="share of answers at the server", ylabel="share of the gap", ylim=(-0.05, 1.3))
    panels[0].legend(fontsize=7, loc="lower right")
    _draw_reliability(panels[2])
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=110)
    print(FIGURE)


def _draw_reliability(panel: Any) -> None:
    answers = read_answers()
    good = np.array(good_answers(answers)[RULE], dtype=float)
    shown: dict[str, Floats] = {"learned": held_out(answers, ratings_of(answers)[RULE]), "perplexity": perplexity(answers)}
    for name, scores in shown.items():
        parts = np.array_split(np.argsort(scores, kind="stable"), _PARTS)
        panel.plot([scores[each].mean() for each in parts], [good[each].mean() for each in parts], marker="o", label=name)
    panel.plot([0, 1], [0, 1], color="grey", linestyle=":", label="right")
    panel.set(title="0.5B: eighths of the answers", xlabel="mean score", ylabel="share of good answers", xlim=(0, 1), ylim=(0, 1))
    panel.legend(fontsize=7)


if __name__ == "__main__":
    main()
