"""Can the next time to first token be foretold from those before? DiSCo's Appendix C (Table 5) on other recordings.

    python -m experiments.prediction [--quick] [--rows]       # needs scikit-learn, xgboost and the recorded data ($STREAMCO_DATA)

Rows of each recorded service are taken in their order: the first half is learned from, each row of the second half is foretold from the
real ones before it. The paper names four methods and no settings; here a moving average's length and the smoothing's factor are those with
the least error in the first half, and both forests see the last five times. Beside them stand the last time as it is, and the first half's
median, which foretells nothing. The prompt's length is left out, as in the paper: it says nothing about these times.

LLMPerf sent five requests at a time, so the four before one were not answered when it was sent, and a forecast may not use them. (Three of
its services answered the five one after the other: a pattern that the measuring made, and that trees find.)

What a prediction is for is choosing the side that answers sooner. So each evaluated time also meets each evaluated Alpaca prompt at the
paper's phones. Only the side that is forecast to be sooner is asked, and the mean time to the first token is compared with asking both,
which knows nothing beforehand and spends twice, and is what hindsight would have chosen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.dispatch import PHONES
from bench.traces import data_folder, prompt_lengths
from experiments.tables import show_table
from streamco.sim.race.services import read_services

__all__ = ["FORECASTS", "foretell", "main", "score"]

Floats = NDArray[np.float64]
Forecast = Callable[[Floats, int, int], Floats]
"""All times, how many of them may be learned from, how many are under way at once -> what the others were foretold to be."""
Foretold = Mapping[str, tuple[Floats, dict[str, Floats]]]
"""By service: the judged times, and by method what was foretold of them."""

LAGS = 5
SEED = 7
LEAST = 30  # rows
NOTHING = "the first half's median"
SOURCES: Mapping[str, tuple[str, tuple[str, str], int]] = {  # file, what tells services apart, requests under way at once
    "LLMPerf": ("llmperf_leaderboard.csv.gz", ("provider", "model"), 5),
    "LatencyLab": ("latencylab_stream_gaps.jsonl.gz", ("host", "model"), 1),
    "thefastest.ai": ("thefastest_ai.csv.gz", ("provider", "model"), 1),
}
PAPER: Mapping[str, Mapping[str, tuple[float, float]]] = {  # Table 5: MAPE [%], MAE [s]
    "moving average": {"Command": (39.40, 0.0899), "DeepSeek": (27.80, 0.3959), "GPT": (24.55, 0.0995), "LLaMA": (42.18, 0.3312)},
    "exponential smoothing": {"Command": (53.51, 0.1047), "DeepSeek": (27.39, 0.3771), "GPT": (20.88, 0.0844), "LLaMA": (40.27, 0.3154)},
    "random forest": {"Command": (39.33, 0.0966), "DeepSeek": (32.97, 0.4745), "GPT": (28.68, 0.1128), "LLaMA": (49.67, 0.3875)},
    "xgboost": {"Command": (35.43, 0.0905), "DeepSeek": (27.51, 0.4001), "GPT": (24.83, 0.0997), "LLaMA": (43.94, 0.3451)},
}


def moving_average(times: Floats, known: int, in_flight: int) -> Floats:
    """The mean of the last few; how many has the least error in what is known."""
    return _best([_delay(_averages(times, length), in_flight) for length in (3, 5, 10, 20)], times, known)


def exponential_smoothing(times: Floats, known: int, in_flight: int) -> Floats:
    """Simple smoothing; the factor has the least error in what is known."""
    return _best([_delay(_smooth(times, step / 20), in_flight) for step in range(1, 20)], times, known)


def random_forest(times: Floats, known: int, in_flight: int) -> Floats:
    """A hundred trees on the last times."""
    model: Any = import_module("sklearn.ensemble").RandomForestRegressor(n_estimators=100, random_state=SEED, n_jobs=1)
    return _learned(model, times, known, in_flight)


def xgboost(times: Floats, known: int, in_flight: int) -> Floats:
    """A hundred shallow trees on the last times, each for what is left by those before."""
    model: Any = import_module("xgboost").XGBRegressor(n_estimators=100, max_depth=3, learning_rate=0.1, random_state=SEED, n_jobs=1)
    return _learned(model, times, known, in_flight)


def last_time(times: Floats, known: int, in_flight: int) -> Floats:
    """As it was before."""
    return times[known - in_flight : -in_flight]


def median(times: Floats, known: int, _: int) -> Floats:
    """Always the same."""
    return np.full(times.size - known, np.median(times[:known]))


FORECASTS: Mapping[str, Forecast] = {
    "moving average": moving_average,
    "exponential smoothing": exponential_smoothing,
    "random forest": random_forest,
    "xgboost": xgboost,
    "the last time": last_time,
    NOTHING: median,
}


def foretell(recorded: Sequence[float], in_flight: int = 1) -> tuple[Floats, dict[str, Floats]]:
    """The second half of a recording, and what each method foretold of it."""
    times, known = np.array(recorded), len(recorded) // 2
    return times[known:], {name: forecast(times, known, in_flight) for name, forecast in FORECASTS.items()}


def score(foretold: Floats, judged: Floats) -> tuple[float, float]:
    """Mean absolute error: per cent of each time, and seconds."""
    errors = np.abs(foretold - judged)
    return float(100.0 * (errors / judged).mean()), float(errors.mean())


def _best(candidates: Sequence[Floats], times: Floats, known: int) -> Floats:
    errors = [np.abs(each[LAGS:known] - times[LAGS:known]).mean() for each in candidates]
    return candidates[int(np.argmin(errors))][known:]


def _delay(foretold: Floats, in_flight: int) -> Floats:
    """What was foretold of each from those before, for one that is sent while the last few are under way."""
    return np.concatenate([np.full(in_flight - 1, foretold[0]), foretold])[: foretold.size]


def _averages(times: Floats, length: int) -> Floats:
    """Of the ``length`` times before each; of as many as there are at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(times)])
    places = np.arange(times.size)
    first = np.maximum(0, places - length)
    averages: Floats = np.where(places > 0, (sums[places] - sums[first]) / np.maximum(1, places - first), times[0])
    return averages


def _smooth(times: Floats, factor: float) -> Floats:
    level, foretold = times[0], np.empty(times.size)
    for place, time in enumerate(times):
        foretold[place] = level
        level += factor * (time - level)
    return foretold


def _learned(model: Any, times: Floats, known: int, in_flight: int) -> Floats:
    lags = np.lib.stride_tricks.sliding_window_view(times, LAGS)[:-in_flight]  # row i: what is known for time i + first
    first = LAGS + in_flight - 1
    model.fit(lags[: known - first], times[first:known])
    foretold: Floats = np.asarray(model.predict(lags[known - first :]), dtype=np.float64)
    return foretold


# What choosing by it would give


def choose(foretold: Floats, judged: Floats, prompts: NDArray[np.int64], phone: str) -> tuple[float, float]:
    """Mean seconds to the first token of whoever was foretold to be sooner, and of whoever was."""
    device = PHONES[phone].seconds_per_token * prompts[:, None]
    chosen = np.where(foretold[None, :] < device, judged[None, :], device)
    return float(chosen.mean()), float(np.minimum(device, judged[None, :]).mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few services of each source")
    parser.add_argument("--rows", action="store_true", help="a row for each service as well")
    options = parser.parse_args(arguments)
    found: dict[str, Foretold] = {}
    for source, (file, by, in_flight) in SOURCES.items():
        recorded = {name: rows for name, rows in sorted(read_services(data_folder() / "ttft" / file, by).items()) if len(rows) >= LEAST}
        names = [*recorded][:: 6 if options.quick else 1]
        found[source] = {name: foretell([first for first, _ in recorded[name]], in_flight) for name in names}
    show_errors(found)
    show_choices(found, prompt_lengths().judged)
    for source, services in found.items() if options.rows else ():
        rows = [
            [name, *("{:.1f}, {:.3f}".format(*score(each, judged)) for each in told.values())] for name, (judged, told) in services.items()
        ]
        show_table(f"{source}: MAPE [%], MAE [s]", ("service", *FORECASTS), rows)
    return 0


def show_errors(found: Mapping[str, Foretold]) -> None:
    """Of the middle service, beside the paper's four."""
    for at, (name, form) in enumerate((("MAPE [%]", "{:.1f}"), ("MAE [s]", "{:.3f}"))):
        rows = []
        for method in FORECASTS:
            ours = [form.format(np.median([score(told[method], judged)[at] for judged, told in of.values()])) for of in found.values()]
            papers = [form.format(each[at]) for each in PAPER[method].values()] if method in PAPER else ["-"] * 4
            rows.append([method, *ours, *papers])
        head = [f"{source} ({len(of)})" for source, of in found.items()]
        show_table(f"{name}, the middle one of the services", ("method", *head, *(f"paper: {each}" for each in PAPER["xgboost"])), rows)
    rows = []
    for source, of in found.items():
        errors = {method: np.array([score(told[method], judged)[1] for judged, told in of.values()]) for method in FORECASTS}
        ratios = [errors[method] / errors[NOTHING] for method in FORECASTS]
        rows.append([source, *(f"{np.median(each):.2f} ({int((each < 1).sum())})" for each in ratios)])
    show_table(f"MAE over that of {NOTHING}: the middle service (in how many it is below 1)", ("source", *FORECASTS), rows)


def show_choices(found: Mapping[str, Foretold], prompts: NDArray[np.int64]) -> None:
    """Asking only who is foretold to be sooner, against asking both."""
    rows = []
    for source, of in found.items():
        for phone in PHONES:
            ratios = []
            for method in FORECASTS:
                pairs = [choose(told[method], judged, prompts, phone) for judged, told in of.values()]
                ratios.append(f"{np.mean([chosen / best for chosen, best in pairs]):.3f}")
            rows.append([source, phone, *ratios])
    title = "Mean TTFT of the side that is foretold to be sooner, over that of both at once; means over services"
    show_table(title, ("source", "phone", *FORECASTS), rows)


if __name__ == "__main__":
    sys.exit(main())
