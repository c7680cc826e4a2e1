"""Tables, a file and a picture of the time to first token: DiSCo's Table 2 and Figure 6 (see ``experiments.disco_judged``)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np

from bench.dispatch import PHONES
from bench.traces import ttft_traces
from experiments.disco_judged import DRAWS, ONE_SIDE, POLICIES, Cut, Judgement, format_cuts, interval, judge_service, median_interval
from experiments.tables import run_all, show_table
from streamco.policies.dispatch import Side

__all__ = ["show_ttft"]

SIDES: tuple[Side, ...] = ("device", "server")
BUDGETS = tuple(tenth / 10 for tenth in range(1, 10))
SHOWN = ("OpenAI gpt-3.5-turbo-0125", "together llama-2-70b-chat", "OpenAI gpt-4-0125-preview", "bedrock llama-2-13b-chat")  # in the plot
NOTHING = 1e-9  # per cent
ALLOWED = 0.01  # share of prompt tokens over the budget
SHOWN_BUDGET = 0.5
LINES = {  # of the plot, by policy
    "disco": ("DiSCo", "#0072b2", "o-"),
    "stochastic": ("random dispatch", "#d55e00", "s-"),
    "optimal": ("the best that waits can do", "#009e73", "--"),
    "equations 1-2": ("DiSCo's equations 1 and 2", "#999999", ":"),
}
KINDS = ("mean_cut", "p99_cut", "mean_cut_spent", "p99_cut_spent")


def show_ttft(options: argparse.Namespace) -> None:
    """Everything about it."""
    services = [*ttft_traces()][:: 5 if options.quick else 1]
    budgets = BUDGETS[::4] if options.quick else BUDGETS
    jobs = [(phone, side, service, budgets, DRAWS) for phone in PHONES for side in SIDES for service in services]
    found: list[Judgement] = [judgement for part in run_all(judge_service, jobs, options.jobs) for judgement in part]
    disco = [each for each in found if each.policy == "disco"]
    show_summary(found)
    show_seconds(found)
    show_spending(found)
    for name, key in (("budget", lambda each: f"{each.budget:g}"), ("service", lambda each: each.service)):
        show_groups(f"DiSCo by {name}; per cent less than stochastic dispatch at the same budget, 95 % interval", name, disco, key)
    show_losses(found)
    if options.csv:
        write_csv(options.csv, disco)
    if options.plot:
        plot_ttft(options.plot, found)


def show_summary(found: Sequence[Judgement]) -> None:
    """Every policy, phone and side, over services and budgets."""
    rows = []
    for side, phone, policy in product(SIDES, PHONES, POLICIES[:-1]):
        part = [each for each in found if (each.side, each.phone, each.policy) == (side, phone, policy)]
        if part:
            cuts = ([getattr(each, name) for each in part] for name in KINDS)
            rows.append([side, phone, policy, *map(format_cuts, cuts), format_median(part)])
    head = ("constrained", "phone", "policy", "mean TTFT", "P99 TTFT", "mean, as dear", "P99, as dear", "mean TTFT, median service")
    show_table("Per cent less than stochastic dispatch, means over services and budgets, 95 % interval", head, rows)


def format_median(part: Iterable[Judgement]) -> str:
    """The cut of the mean for the middle one of the services, over budgets, and its interval."""
    services: dict[str, list[Cut]] = {}
    for each in part:
        services.setdefault(each.service, []).append(each.mean_cut)
    return "{:.1f} ({:.1f} to {:.1f})".format(*median_interval(services.values()))


def show_spending(found: Sequence[Judgement]) -> None:
    """How often a plan spends more than its budget, and by how much."""
    rows = []
    for side, policy in product(SIDES, [name for name in POLICIES if name not in {*ONE_SIDE, "stochastic"}]):
        over = [each.share - each.budget for each in found if (each.side, each.policy) == (side, policy)]
        if over:
            rows.append([side, policy, str(len(over)), str(sum(excess > ALLOWED for excess in over)), f"{max(over):.3f}"])
    head = ("constrained", "policy", "settings", f"over by more than {ALLOWED:g}", "at worst by")
    show_table("Plans that spend more than their budget on the judged halves", head, rows)


def show_seconds(found: Sequence[Judgement]) -> None:
    """One side only beside random dispatch and DiSCo at half of the prompt tokens, in seconds."""
    rows = []
    for side, phone in product(SIDES, PHONES):
        cells = []
        for policy in (*ONE_SIDE, "stochastic", "disco"):
            part = [each for each in found if (each.side, each.phone, each.budget, each.policy) == (side, phone, SHOWN_BUDGET, policy)]
            cells += [f"{np.mean([each.mean for each in part]):.2f} / {np.median([each.mean for each in part]):.2f}"]
            cells += [f"{np.median([each.p99 for each in part]):.2f}"]
        rows.append([side, phone, *cells])
    names = ("server only", "device only", f"random dispatch, budget {SHOWN_BUDGET:g}", f"DiSCo, budget {SHOWN_BUDGET:g}")
    head = ("constrained", "phone", *(f"{name}, {what}" for name in names for what in ("mean / median service", "P99, median service")))
    show_table("Seconds to the first token over services: the mean of each, and P99", head, rows)


def show_groups(title: str, name: str, disco: Sequence[Judgement], key: Callable[[Judgement], str]) -> None:
    """Phones side by side."""
    for side, metric in product(SIDES, ("mean", "p99")):
        part = [each for each in disco if each.side == side]
        rows = []
        for group in dict.fromkeys(map(key, part)):
            cuts = ([getattr(each, f"{metric}_cut") for each in part if key(each) == group and each.phone == phone] for phone in PHONES)
            rows.append([group, *map(format_cuts, cuts)])
        show_table(f"{title}: {metric} TTFT, {side}-constrained", (name, *PHONES), rows)


def show_losses(found: Sequence[Judgement]) -> None:
    """Where stochastic dispatch is sooner."""
    rows: list[list[str]] = []
    places: list[list[str]] = []
    for side, metric, policy in product(SIDES, ("mean", "p99"), [name for name in POLICIES if name not in {*ONE_SIDE, "stochastic"}]):
        cells = [(each, getattr(each, f"{metric}_cut_spent")) for each in found if (each.side, each.policy) == (side, policy)]
        if not cells:
            continue
        lost = [(each, cut) for each, cut in cells if cut.value < -NOTHING]
        surely_lost, won = sum(interval([cut])[2] < 0 for _, cut in lost), sum(interval([cut])[1] > 0 for _, cut in cells)
        worst = min(cut.value for _, cut in cells)
        rows.append([side, metric, policy, str(len(cells)), str(won), str(len(lost)), str(surely_lost), f"{worst:.1f}"])
        if policy == "disco":
            places += [
                [side, metric, each.phone, each.service, f"{each.budget:g}", f"{each.share:.2f}", format_cuts([cut])] for each, cut in lost
            ]
    head: tuple[str, ...] = ("constrained", "TTFT", "policy", "settings", "surely sooner", "later", "surely later", "worst [%]")
    show_table("Against stochastic dispatch that spends as much, setting by setting (surely: the whole interval)", head, rows)
    head = ("constrained", "TTFT", "phone", "service", "budget", "spent", "cut [%]")
    show_table("Where DiSCo's algorithms are later than random dispatch", head, places)


def write_csv(path: Path, disco: Iterable[Judgement]) -> None:
    """Seconds, shares and per cent with the ends of their intervals."""
    ends = [f"{kind}{end}" for kind in KINDS for end in ("", "_low", "_high")]
    lines = [",".join(["phone", "constrained", "service", "budget", "mean_s", "p99_s", "share", *ends])]
    for each in disco:
        cuts = [f"{value:.1f}" for kind in KINDS for value in interval([getattr(each, kind)])]
        figures = [f"{value:.3f}" for value in (each.mean, each.p99, each.share)]
        lines.append(",".join([each.phone, each.side, each.service, f"{each.budget:g}", *figures, *cuts]))
    path.write_text("\n".join(lines) + "\n")


def plot_ttft(path: Path, found: Sequence[Judgement]) -> None:
    """Mean TTFT over budgets, a column a service, a row a side with a phone."""
    import_module("matplotlib").use("Agg")
    plt = import_module("matplotlib.pyplot")
    services = [name for name in SHOWN if any(each.service == name for each in found)]
    places = [(side, phone) for side in SIDES for phone in PHONES]
    figure, axes = plt.subplots(len(places), len(services), figsize=(3.2 * len(services), 2.2 * len(places)), squeeze=False, sharex=True)
    for (line, (side, phone)), (column, service) in product(enumerate(places), enumerate(services)):
        axis = axes[line][column]
        part = [each for each in found if (each.side, each.phone, each.service) == (side, phone, service)]
        for policy, (label, colour, dashes) in LINES.items():
            line_of = [each for each in part if each.policy == policy]
            axis.plot([each.budget for each in line_of], [each.mean for each in line_of], dashes, color=colour, label=label, markersize=3)
        axis.set_title(service if not line else "", fontsize=9)
        axis.set_ylim(0, 1.1 * max(each.mean for each in part))
        axis.tick_params(labelsize=7)
        axis.grid(axis="y", alpha=0.3)
        if not column:
            axis.set_ylabel(f"{phone}\nthe {side} is spared\nmean TTFT (s)", fontsize=7)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", ncols=len(LINES), fontsize=9, frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("budget (share of the prompt tokens)", fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.975))
    figure.savefig(path, dpi=80, metadata={"Software": None})
