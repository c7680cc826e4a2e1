"""Two short tables of quality by budget, for the page: scores of chunks by confidence, and the tokens that the server computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.papers.synera.quality import qualities
from bench.papers.synera.results import Result
from bench.papers.synera.rules import Cell, RuleName
from bench.tables import table_lines

__all__ = ["NAMES", "score_lines", "summary_lines", "token_lines"]

NAMES = {"csqa": "CommonsenseQA", "xsum": "XSum", "humaneval": "HumanEval", "cnndm": "CNN/DM", "sst2": "SST-2", "gsm8k": "GSM8K"}
SHOWN: RuleName = "confidence"
CHUNKS: tuple[RuleName, ...] = ("combined", "confidence", "importance")
TOKENS: tuple[RuleName, ...] = ("hybrid",)

Found = Mapping[str, Sequence[Mapping[str, Result]]]


def summary_lines(found: Found, budgets: Sequence[float]) -> Iterator[str]:
    """Yield both tables.

    Args:
        found: each task's questions with the results of all contenders.
        budgets: those of the recording.
    """
    yield "Score, and times the device's; chunks by confidence:"
    yield ""
    yield from score_lines(found, budgets)
    yield ""
    yield "Tokens that the server computes for each token of an answer, lowest to highest of the tasks:"
    yield ""
    yield from token_lines(found, budgets)


def score_lines(found: Found, budgets: Sequence[float]) -> Iterator[str]:
    """Yield a line for each task: the device, chunks by confidence at each budget, and the server."""
    cells = [Cell("device", 0.0), *(Cell(SHOWN, budget) for budget in budgets), Cell("server", 1.0)]
    rows = []
    for task, results in found.items():
        device, *others = (each.score.value for each in qualities(results, [cell.name for cell in cells]))
        shown = (f"{score:.3f} ({score / device:.2f})" if device else f"{score:.3f}" for score in others)
        rows.append([NAMES.get(task, task), f"{len(results)}", f"{device:.3f}", *shown])
    yield from table_lines(["", "questions", "device", *(f"budget {budget:g}" for budget in budgets), "server"], rows)


def token_lines(found: Found, budgets: Sequence[float]) -> Iterator[str]:
    """Yield the range over tasks for chunks, whatever chooses them, and for single tokens."""
    rows = [[name, *(_range(found, rules, budget) for budget in budgets)] for name, rules in (("chunks", CHUNKS), ("Hybrid", TOKENS))]
    yield from table_lines(["", *(f"budget {budget:g}" for budget in budgets)], rows)


def _range(found: Found, rules: Sequence[RuleName], budget: float) -> str:
    names = [Cell(rule, budget).name for rule in rules]
    shares = []
    for results in found.values():
        shares += [each.server_share for each in qualities(results, [name for name in names if name in results[0]])]
    return f"{min(shares):.2f} to {max(shares):.2f}" if shares else ""
