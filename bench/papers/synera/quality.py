"""Tables of quality by budget (Synera's Table 4 and Figures 12 and 14), with intervals, from recorded answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.papers.synera.results import Result
from bench.papers.synera.rules import Cell
from bench.tasks.intervals import Interval, interval_of, resample

__all__ = ["Quality", "qualities", "with_whole_answers"]

Results = Sequence[Mapping[str, Result]]


class Quality(NamedTuple):
    """One contender on one task.

    Args:
        name: name of the contender.
        score: mean score.
        gain: score less the device's, of the same draws of questions.
        ratio: score over the device's, the paper's relative gain; None: the device scores 0 in some draw of questions.
        over_confidence: score less that of the rule ``confidence`` at this budget; None: there is none.
        server_share: tokens that the target computed, for each token of the answers.
        sent_share: share of the drafted tokens that were sent; of ``answers``: of whole answers.
    """

    name: str
    score: Interval
    gain: Interval
    ratio: Interval | None
    over_confidence: Interval | None
    server_share: float
    sent_share: float

    def row(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {key: value._asdict() if isinstance(value, Interval) else value for key, value in self._asdict().items()}


def with_whole_answers(results: Results, budgets: Sequence[float]) -> list[dict[str, Result]]:
    """Return the results with those of the contender ``answers``, which are the device's or the server's.

    The server's are those of the questions at which the draft model was most perplexed; the threshold is profiled on these questions.
    """
    perplexities = [each["device"].perplexity for each in results]
    ranked = sorted(range(len(results)), key=lambda place: -perplexities[place])
    found = [dict(each) for each in results]
    for budget in budgets:
        sent = {*ranked[: round(budget * len(results))]}
        for place, each in enumerate(found):
            each[Cell("answers", budget).name] = each["server" if place in sent else "device"]
    return found


def qualities(results: Results, names: Sequence[str]) -> list[Quality]:
    """Return the figures of these contenders.

    Args:
        results: every contender's result for each question.
        names: contenders; ``device`` has to be among the results. One that has not answered all questions is left out.
    """
    order = [name for name in dict.fromkeys([*names, "device", *results[0]]) if all(name in each for each in results)]
    names = [name for name in names if name in order]
    drawn = dict(zip(order, resample([[each[name].score for each in results] for name in order]), strict=True))
    device, found = drawn["device"], []
    for name in names:
        rule, _, budget = name.partition(" ")
        other = f"confidence {budget}"
        found.append(
            Quality(
                name,
                interval_of(drawn[name]),
                interval_of(drawn[name] - device),
                interval_of(drawn[name] / device) if device.min() > 0.0 else None,
                interval_of(drawn[name] - drawn[other]) if budget and rule != "confidence" and other in drawn else None,
                _server_share(name, results),
                _sent_share(name, results),
            )
        )
    return found


def _server_share(name: str, results: Results) -> float:
    tokens = sum(each[name].tokens for each in results)
    return sum(_server_tokens(name, each) for each in results) / tokens if tokens else 0.0


def _server_tokens(name: str, results: Mapping[str, Result]) -> int:
    result = results[name]
    is_server = name == "server" or (name.startswith("answers") and result is results["server"])
    return result.tokens if is_server else result.server_tokens


def _sent_share(name: str, results: Results) -> float:
    if name == "server":
        return 1.0
    if name.startswith("answers"):
        return sum(each[name] is each["server"] for each in results) / len(results)
    drafted = sum(each[name].drafted for each in results)
    return sum(each[name].sent for each in results) / drafted if drafted else 0.0
