"""Predictions of the next time to first token from those before: DiSCo's Appendix C (Table 5) on other recordings.

    pip install scikit-learn xgboost
    python -m bench.papers.kept run disco_prediction       # needs the recorded data ($STREAMCO_DATA)

Rows of each recorded service are taken in their order: the first half is learned from, and each row of the second half is predicted from
the real ones before it. The paper names four methods and no settings. Here a moving average's length and the smoothing's factor are those
with the least error in the first half, and both forests see the last five times. Beside them stand the last time as it is, and the first
half's median, which predicts nothing. The prompt's length is left out, as in the paper: it says nothing about these times.

LLMPerf sent five requests at a time. The four before one were not answered when it was sent, so a prediction may not use them. (Three of
its services answered the five one after the other: a pattern that the measuring made, and that the trees find for one of them.)

What a prediction is for is choosing the side that answers sooner. So each tested time also meets each tested Alpaca prompt at the paper's
phones. Only the side that is predicted to be sooner is asked. Its mean time to the first token is compared with that of asking both, which
knows nothing beforehand and spends twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.counted.dispatch import PHONES
from bench.tables import table_lines
from bench.traces import data_folder, prompt_lengths
from streamco.sim.race.services import read_services

__all__ = ["METHODS", "choice_lines", "choose", "predict", "prediction_lines", "prediction_rows", "score"]

Floats = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]
Method = Callable[[Floats, int, int], Floats]
"""All times, how many of them may be learned from, how many are under way at once -> what it predicts of the others."""

LAGS = 5
SEED = 7
LEAST = 30  # rows
MEDIAN = "the first half's median"
SOURCES: Mapping[str, tuple[str, tuple[str, str], int]] = {  # file, what tells services apart, requests under way at once
    "LLMPerf": ("llmperf_leaderboard.csv.gz", ("provider", "model"), 5),
    "LatencyLab": ("latencylab_stream_gaps.jsonl.gz", ("host", "model"), 1),
    "thefastest.ai": ("thefastest_ai.csv.gz", ("provider", "model"), 1),
}
PAPER: Mapping[str, Mapping[str, tuple[float, float]]] = {  # Table 5: MAPE [%], MAE [s]
    "moving average": {"Command": (39.40, 0.0899), "DeepSeek": (27.80, 0.3959), "GPT": (24.55, 0.0995), "LLaMA": (42.18, 0.3312)},
    "exponential smoothing": {"Command": (53.51, 0.1047), "DeepSeek": (27.39, 0.3771), "GPT": (20.88, 0.0844), "LLaMA": (40.27, 0.3154)},
    "random forest": {"Command": (39.33, 0.0966), "DeepSeek": (32.97, 0.4745), "GPT": (28.68, 0.1128), "LLaMA": (49.67, 0.3875)},
    "XGBoost": {"Command": (35.43, 0.0905), "DeepSeek": (27.51, 0.4001), "GPT": (24.83, 0.0997), "LLaMA": (43.94, 0.3451)},
}


def moving_average(times: Floats, known: int, in_flight: int) -> Floats:
    """Predict the mean of the last few: as many as have the least error in what is known."""
    return _best([_delay(_averages(times, length), in_flight) for length in (3, 5, 10, 20)], times, known)


def exponential_smoothing(times: Floats, known: int, in_flight: int) -> Floats:
    """Predict by simple smoothing, with the factor that has the least error in what is known."""
    return _best([_delay(_smooth(times, step / 20), in_flight) for step in range(1, 20)], times, known)


def random_forest(times: Floats, known: int, in_flight: int) -> Floats:
    """Predict by a hundred trees on the last times."""
    model: Any = import_module("sklearn.ensemble").RandomForestRegressor(n_estimators=100, random_state=SEED, n_jobs=1)
    return _learned(model, times, known, in_flight)


def xgboost(times: Floats, known: int, in_flight: int) -> Floats:
    """Predict by a hundred shallow trees on the last times, each for what is left by those before."""
    model: Any = import_module("xgboost").XGBRegressor(n_estimators=100, max_depth=3, learning_rate=0.1, random_state=SEED, n_jobs=1)
    return _learned(model, times, known, in_flight)


def last_time(times: Floats, known: int, in_flight: int) -> Floats:
    """Predict the time before."""
    return times[known - in_flight : -in_flight]


def first_median(times: Floats, known: int, _: int) -> Floats:
    """Predict the median of what is known, always."""
    return np.full(times.size - known, np.median(times[:known]))


METHODS: Mapping[str, Method] = {
    "moving average": moving_average,
    "exponential smoothing": exponential_smoothing,
    "random forest": random_forest,
    "XGBoost": xgboost,
    "the last time": last_time,
    MEDIAN: first_median,
}


def predict(recorded: Sequence[float], in_flight: int = 1) -> tuple[Floats, dict[str, Floats]]:
    """Return the second half of a recording, and what each method predicts of it."""
    times, known = np.array(recorded), len(recorded) // 2
    return times[known:], {name: method(times, known, in_flight) for name, method in METHODS.items()}


def score(predicted: Floats, tested: Floats) -> tuple[float, float]:
    """Return the mean absolute error: per cent of each time, and seconds."""
    errors = np.abs(predicted - tested)
    return float(100.0 * (errors / tested).mean()), float(errors.mean())


def _best(candidates: Sequence[Floats], times: Floats, known: int) -> Floats:
    errors = [np.abs(each[LAGS:known] - times[LAGS:known]).mean() for each in candidates]
    return candidates[int(np.argmin(errors))][known:]


def _delay(predicted: Floats, in_flight: int) -> Floats:
    """Return what is predicted of each from those before, for one that is sent while the last few are under way."""
    return np.concatenate([np.full(in_flight - 1, predicted[0]), predicted])[: predicted.size]


def _averages(times: Floats, length: int) -> Floats:
    """Return means of the ``length`` times before each; of as many as there are at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(times)])
    places = np.arange(times.size)
    first = np.maximum(0, places - length)
    averages: Floats = np.where(places > 0, (sums[places] - sums[first]) / np.maximum(1, places - first), times[0])
    return averages


def _smooth(times: Floats, factor: float) -> Floats:
    level, predicted = times[0], np.empty(times.size)
    for place, time in enumerate(times):
        predicted[place] = level
        level += factor * (time - level)
    return predicted


def _learned(model: Any, times: Floats, known: int, in_flight: int) -> Floats:
    lags = np.lib.stride_tricks.sliding_window_view(times, LAGS)[:-in_flight]  # row i: what is known for time i + first
    first = LAGS + in_flight - 1
    model.fit(lags[: known - first], times[first:known])
    predicted: Floats = np.asarray(model.predict(lags[known - first :]), dtype=np.float64)
    return predicted


# What choosing by it would give


def choose(predicted: Floats, tested: Floats, prompts: NDArray[np.int64], phone: str) -> tuple[float, float]:
    """Return mean seconds to the first token of the side that was predicted to be sooner, and of the one that was."""
    device = PHONES[phone].seconds_per_token * prompts[:, None]
    chosen = np.where(predicted[None, :] < device, tested[None, :], device)
    return float(chosen.mean()), float(np.minimum(device, tested[None, :]).mean())


# Rows and tables


def prediction_rows(_: int) -> Rows:
    """Return each service's errors by method, and what asking only one side takes over asking both, by phone and method."""
    prompts, rows = prompt_lengths().judged, []
    for source, (file, by, in_flight) in SOURCES.items():
        recorded = read_services(data_folder() / "ttft" / file, by)
        for service, requests in sorted(recorded.items()):
            if len(requests) >= LEAST:
                rows.append({"source": source, "service": service, **_service_row([first for first, _ in requests], in_flight, prompts)})
    return rows


def _service_row(recorded: Sequence[float], in_flight: int, prompts: NDArray[np.int64]) -> Mapping[str, Any]:
    tested, predicted = predict(recorded, in_flight)
    errors = {method: [round(error, 6) for error in score(each, tested)] for method, each in predicted.items()}
    chosen = {phone: {method: choose(each, tested, prompts, phone) for method, each in predicted.items()} for phone in PHONES}
    over = {phone: {method: round(one / both, 4) for method, (one, both) in of.items()} for phone, of in chosen.items()}
    return {"tested": tested.size, "errors": errors, "one_side": over}


def prediction_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the error of the middle service beside the paper's, and over that of the first half's median."""
    rows: Rows = results["rows"]
    services = {source: [row["errors"] for row in rows if row["source"] == source] for source in SOURCES}
    lines = []
    for method in METHODS:
        shares = [f"{median(errors[method][0] for errors in of):.1f} %" for of in services.values()]
        papers = [share for share, _ in PAPER.get(method, {}).values()]
        paper = f"{min(papers):.1f} to {max(papers):.1f} %" if papers else ""
        ratios = [[errors[method][1] / errors[MEDIAN][1] for errors in of] for of in services.values()]
        over = [f"{median(of):.2f} ({sum(ratio < 1 for ratio in of)})" for of in ratios]
        seconds = [f"{median(errors[method][1] for errors in of):.2f}" for of in services.values()]
        lines.append([method, *shares, paper, " / ".join(seconds), "1" if method == MEDIAN else " / ".join(over)])
    names, order = [f"{source} ({len(of)})" for source, of in services.items()], " / ".join(services)
    head = ["method", *(f"MAPE: {name}" for name in names), "paper (4)", f"MAE [s]: {order}"]
    yield from table_lines([*head, f"MAE over that of {MEDIAN} (services below 1): {order}"], lines)


def choice_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield by how much asking one side takes longer than asking both, by source and method: means over services."""
    lines = []
    for source in SOURCES:
        found = [row["one_side"] for row in results["rows"] if row["source"] == source]
        for method in METHODS:
            shares = (fmean(row[phone][method] for row in found) - 1.0 for phone in PHONES)
            lines.append([source, method, *(f"{100 * share:.1f} %" for share in shares)])
    yield from table_lines(["services", "method", *PHONES], lines)
