"""Time to first token of DiSCo's plans on recorded services, kept and as tables: Table 2 and Figure 6 (see ``bench.papers.disco_judged``).

``python -m bench.papers.kept run disco_planned`` keeps three kinds of rows:

- ``setting``: DiSCo with one phone, service, spared side and budget, with intervals;
- ``policy``: each policy with one phone and spared side, over all services and budgets;
- ``line``: a line of the plot, the mean by budget.

``python -m bench.papers.disco plot`` draws Figure 6 from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.counted.dispatch import PHONES
from bench.papers.disco_judged import DRAWS, EQUATIONS, ONE_SIDE, Cut, Judgement, interval, judge_service, median_interval
from bench.tables import run_all, table_lines
from bench.tasks.intervals import Interval
from bench.traces import ttft_traces
from streamco.policies.dispatch import Side

__all__ = ["BUDGETS", "PAPER_P99", "PAPER_SERVICES", "PLANNED_TABLES", "SIDES", "Planned", "planned_rows", "plot_planned"]

SIDES: tuple[Side, ...] = ("device", "server")
BUDGETS = tuple(tenth / 10 for tenth in range(1, 10))
PAPER_SERVICES = {  # whose recorded times stand for the paper's service
    "GPT": "OpenAI gpt-3.5-turbo-0125",
    "LLaMA": "together llama-2-70b-chat",
    "DeepSeek": "OpenAI gpt-4-0125-preview",
    "Command": "bedrock llama-2-13b-chat",
}
PAPER_P99: Mapping[tuple[str, Side], tuple[float, ...]] = {  # Table 2: per cent less, by phone
    ("GPT", "server"): (23.9, 37.4, 44.0),
    ("GPT", "device"): (26.4, 21.5, 16.3),
    ("LLaMA", "server"): (11.1, 23.1, 26.3),
    ("LLaMA", "device"): (35.7, 29.3, 21.3),
    ("DeepSeek", "server"): (0.0, 3.9, 15.5),
    ("DeepSeek", "device"): (30.9, 28.0, 25.1),
    ("Command", "server"): (47.9, 50.9, 52.2),
    ("Command", "device"): (34.8, 31.5, 24.4),
}
ALLOWED = 0.01  # share of prompt tokens over the budget
SHOWN_BUDGET = 0.5
LINES = {  # of the plot, by policy
    "disco": ("DiSCo", "#0072b2", "o-"),
    "stochastic": ("random dispatch", "#d55e00", "s-"),
    "optimal": ("the best that waits can do", "#009e73", "--"),
    EQUATIONS[0]: ("DiSCo's equations 1 and 2", "#999999", ":"),
}
WAITS = {
    "disco": "Algorithm 2",
    EQUATIONS[0]: "equations 1 and 2, l_th with the lowest expected time",
    EQUATIONS[1]: "equations 1 and 2, the longest l_th",
    EQUATIONS[2]: "equations 1 and 2, l_th = 0",
    "optimal": "optimum",
}
KINDS = ("mean_cut", "p99_cut", "mean_cut_spent", "p99_cut_spent")
METRICS = {"mean": "mean", "p99": "P99"}

Rows = Sequence[Mapping[str, Any]]
Place = tuple[Side, str]
"""The side that is spared, and the phone."""


# Rows


def planned_rows(processes: int) -> Rows:
    """Return the rows of all services, which takes minutes; needs the recorded data ($STREAMCO_DATA)."""
    jobs = [(phone, side, service, BUDGETS, DRAWS) for side in SIDES for phone in PHONES for service in ttft_traces()]
    return rows_of([judgement for part in run_all(judge_service, jobs, processes) for judgement in part])


def rows_of(found: Sequence[Judgement]) -> Rows:
    """Return the rows of these judgements."""
    by_policy: dict[tuple[Side, str, str], list[Judgement]] = defaultdict(list)
    for each in found:
        by_policy[each.side, each.phone, each.policy].append(each)
    rows = [_setting_row(each) for each in found if each.policy == "disco"]
    rows += [_policy_row(part) for part in by_policy.values()]
    return rows + [row for part in by_policy.values() if part[0].policy in LINES for row in _line_rows(part)]


def _setting_row(judged: Judgement) -> Mapping[str, Any]:
    place = {"side": judged.side, "phone": judged.phone, "service": judged.service, "budget": judged.budget}
    figures = {name: round(getattr(judged, name), 4) for name in ("mean", "p99", "share")}
    return {"of": "setting", **place, **figures, **{kind: _rounded(interval([getattr(judged, kind)])) for kind in KINDS}}


def _policy_row(part: Sequence[Judgement]) -> Mapping[str, Any]:
    """Return one policy's intervals with a phone and a spared side, its seconds at one budget, and how often it is later."""
    shown = [each for each in part if each.budget == SHOWN_BUDGET]
    services: dict[str, list[Cut]] = defaultdict(list)
    for each in part:
        services[each.service].append(each.mean_cut)
    seconds = {"mean": fmean(each.mean for each in shown)}
    seconds |= {"median": median(each.mean for each in shown), "p99": median(each.p99 for each in shown)}
    counts = {kind: _count([_rounded(interval([getattr(each, kind)])) for each in part]) for kind in ("mean_cut", "mean_cut_spent")}
    return {
        "of": "policy",
        "side": part[0].side,
        "phone": part[0].phone,
        "policy": part[0].policy,
        "settings": len(part),
        **{kind: _rounded(interval([getattr(each, kind) for each in part])) for kind in ("mean_cut", "p99_cut", "mean_cut_spent")},
        "median_service": _rounded(median_interval(services.values())),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "later": counts,
    }


def _count(cuts: Sequence[Sequence[float]]) -> Mapping[str, float]:
    """Return how many cuts are later, sooner or the same, how many surely (the whole interval), and the lowest cut, per cent."""
    return {
        "later": sum(value < 0 for value, _, _ in cuts),
        "surely later": sum(high < 0 for _, _, high in cuts),
        "surely sooner": sum(low > 0 for _, low, _ in cuts),
        "the same time": sum(not value for value, _, _ in cuts),
        "lowest": min(value for value, _, _ in cuts),
    }


def _line_rows(part: Sequence[Judgement]) -> Iterator[Mapping[str, Any]]:
    first = part[0]
    for service in PAPER_SERVICES.values():
        means = {each.budget: each.mean for each in part if each.service == service}
        if means:
            place = {"side": first.side, "phone": first.phone, "service": service, "policy": first.policy}
            yield {"of": "line", **place, "means": [round(means[budget], 4) for budget in sorted(means)]}


def _rounded(values: Iterable[float]) -> list[float]:
    """Return per cent to a thousandth: less than half of that is the same time."""
    return [round(value, 3) for value in values]


# Tables


@dataclass(frozen=True, slots=True)
class Planned:
    """The rows of one run.

    Args:
        settings: those of DiSCo's settings.
        policies: those of a policy, by place and policy.
    """

    settings: Rows
    policies: Mapping[Place, Mapping[str, Mapping[str, Any]]]

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> Planned:
        """Return the rows of a kept file."""
        policies: dict[Place, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        for row in results["rows"]:
            if row["of"] == "policy":
                policies[row["side"], row["phone"]][row["policy"]] = row
        return cls([row for row in results["rows"] if row["of"] == "setting"], policies)

    def cut(self, kind: str, **wanted: object) -> float:
        """Return the mean of a cut over these settings, per cent."""
        return fmean(row[kind][0] for row in self.settings if all(row[name] == value for name, value in wanted.items()))


def summary_lines(planned: Planned) -> Iterator[str]:
    """Yield DiSCo's cuts beside the optimum's and the equations', means over services and budgets."""
    head = ["spared", "phone", "mean TTFT", "median service", "mean, at equal spending", "P99 TTFT"]
    rows = []
    for (side, phone), policies in planned.policies.items():
        disco, best, equations = (policies.get(name) for name in ("disco", "optimal", EQUATIONS[0]))
        assert disco is not None
        cuts = [format_interval(disco[kind]) for kind in ("mean_cut", "median_service", "mean_cut_spent", "p99_cut")]
        optimum = [f"{best[kind][0]:.1f}" if best else "" for kind in ("mean_cut", "p99_cut")]
        rows.append([side, phone, *cuts, *optimum, format_interval(equations["mean_cut"]) if equations else ""])
    yield from table_lines([*head, "optimum, mean", "optimum, P99", "equations 1 and 2, mean"], rows)


def seconds_lines(planned: Planned) -> Iterator[str]:
    """Yield one side only beside random dispatch and DiSCo at half of the prompt tokens, in seconds."""
    names = {**{name: name for name in ONE_SIDE}, "stochastic": "random dispatch", "disco": "DiSCo"}
    rows = []
    for (side, phone), policies in planned.policies.items():
        seconds = [policies[name]["seconds"] for name in names]
        cells = [(f"{each['mean']:.2f} / {each['median']:.2f}", f"{each['p99']:.2f}") for each in seconds]
        rows.append([side, phone, *chain.from_iterable(cells)])
    yield from table_lines(["spared", "phone", *(column for name in names.values() for column in (name, "P99"))], rows)


def paper_lines(planned: Planned) -> Iterator[str]:
    """Yield the cut of P99 beside the paper's, for the services that stand for its four."""
    rows = []
    for (model, side), papers in PAPER_P99.items():
        service = PAPER_SERVICES[model]
        ours = (planned.cut("p99_cut", side=side, phone=phone, service=service) for phone in PHONES)
        rows.append([f"{model}, {service}", side, *(f"{paper:.1f} / {cut:.1f}" for paper, cut in zip(papers, ours, strict=True))])
    yield from table_lines(["paper's service, times of", "spared", *PHONES], rows)


def budget_lines(planned: Planned) -> Iterator[str]:
    """Yield cuts by budget, the phones beside each other."""
    columns = [*product(SIDES, METRICS)]
    rows = []
    for budget in sorted({row["budget"] for row in planned.settings}):
        cells = ([planned.cut(f"{metric}_cut", side=side, budget=budget, phone=phone) for phone in PHONES] for side, metric in columns)
        rows.append([f"{budget:g}", *(" / ".join(f"{cut:.1f}" for cut in cuts) for cuts in cells)])
    yield from table_lines(["budget", *(f"{side} spared, {METRICS[metric]}" for side, metric in columns)], rows)


def later_lines(planned: Planned) -> Iterator[str]:
    """Yield in how many of DiSCo's settings it is later or surely sooner than random dispatch."""
    rows = []
    for (metric, name), suffix in product(METRICS.items(), ("", "_spent")):
        counts = dict(_count([row[f"{metric}_cut{suffix}"] for row in planned.settings]))
        lowest = counts.pop("lowest")
        case = f"{name}, {'at equal spending' if suffix else 'at the same budget'}"
        rows.append([case, *(f"{count:,}" for count in counts.values()), f"{lowest:.2f} %"])
    head = [f"of {len(planned.settings):,} settings", "later", "surely later", "surely sooner", "the same time", "lowest"]
    yield from table_lines(head, rows)


def spending_lines(planned: Planned) -> Iterator[str]:
    """Yield how often DiSCo's plans spend more than their budget on the tested halves, and by how much."""
    rows = []
    for side in SIDES:
        found = [row for row in planned.settings if row["side"] == side]
        worst = max(found, key=lambda row: float(row["share"] - row["budget"]))
        over = sum(row["share"] - row["budget"] > ALLOWED for row in found)
        rows.append([side, f"{over} of {len(found)}", f"{worst['share']:.2f} in place of {worst['budget']:g}"])
    yield from table_lines(["spared", f"settings that spend over {ALLOWED:g} more than their budget", "at worst"], rows)


def equation_lines(planned: Planned) -> Iterator[str]:
    """Yield the choices of l_th in equations 1 and 2 beside Algorithm 2, and the optimum; the device is spared."""
    rows = []
    for policy, label in WAITS.items():
        found = [planned.policies["device", phone][policy] for phone in PHONES]
        cells = [" / ".join(f"{row['mean_cut'][0]:.1f}" for row in found)]
        for kind in ("mean_cut", "mean_cut_spent"):
            later = [row["later"][kind] for row in found]
            count, surely = (sum(each[name] for each in later) for name in ("later", "surely later"))
            cells.append(f"{count}, surely {surely}; {min(each['lowest'] for each in later):.1f} %" if count else "0")
        rows.append([label, *cells])
    settings = sum(planned.policies["device", phone]["disco"]["settings"] for phone in PHONES)
    head = ["waits", "mean", f"later than random dispatch, of {settings}; at worst", "later at equal spending; at worst"]
    yield from table_lines(head, rows)


def format_interval(values: Sequence[float]) -> str:
    """Return a value with the ends of its interval."""
    return Interval(*values).show(1)


PLANNED_TABLES: Mapping[str, Callable[[Planned], Iterator[str]]] = {
    "disco_planned": summary_lines,
    "disco_planned_seconds": seconds_lines,
    "disco_planned_paper": paper_lines,
    "disco_planned_budgets": budget_lines,
    "disco_planned_later": later_lines,
    "disco_planned_spending": spending_lines,
    "disco_planned_equations": equation_lines,
}
"""The page's tables of one run, by the name of their marks."""


# Figure 6


def plot_planned(path: Path, results: Mapping[str, Any]) -> None:
    """Draw the mean over budgets, a column for each service, a row for each spared side with a phone; needs matplotlib."""
    import_module("matplotlib").use("Agg")
    plt = import_module("matplotlib.pyplot")
    means = {(row["side"], row["phone"], row["service"], row["policy"]): row["means"] for row in results["rows"] if row["of"] == "line"}
    services = [*PAPER_SERVICES.values()]
    places = [*product(SIDES, PHONES)]
    figure, axes = plt.subplots(len(places), len(services), figsize=(3.2 * len(services), 2.2 * len(places)), squeeze=False, sharex=True)
    for (line, (side, phone)), (column, service) in product(enumerate(places), enumerate(services)):
        axis = axes[line][column]
        drawn = {policy: means[side, phone, service, policy] for policy in LINES if (side, phone, service, policy) in means}
        for policy, values in drawn.items():
            label, colour, dashes = LINES[policy]
            axis.plot(BUDGETS, values, dashes, color=colour, label=label, markersize=3)
        axis.set_title(service if not line else "", fontsize=9)
        axis.set_ylim(0, 1.1 * max(max(values) for values in drawn.values()))
        axis.tick_params(labelsize=7)
        axis.grid(axis="y", alpha=0.3)
        if not column:
            axis.set_ylabel(f"{phone}\nthe {side} is spared\nmean TTFT (s)", fontsize=7)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", ncols=len(LINES), fontsize=9, frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("budget (share of the prompt tokens)", fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.975))
    figure.savefig(path, dpi=80, metadata={"Software": None})
