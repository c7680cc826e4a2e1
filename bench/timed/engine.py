"""How fast the engine writes (beside llama-cpp-python's own streaming and bare llama_decode), and how soon it stops.

All figures are of the packaged model. Contenders take turns; each has a context of its own and the same number of threads.
llama-cpp-python's streaming has a process of its own, because it uses kernels that kill the process on some processors.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

from bench.report import Row, add_arguments, emit, interleave, rows_from, summarise
from bench.timed.child import ChildContender, NotOnThisProcessor
from streamco.config import SamplingOptions
from streamco.engines.base import EngineOptions, GenerationEnd, GenerationRequest
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.library import load_library
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.loop import EngineLoop

SEED = 7
STREAM = "llama-cpp-python stream"
GREEDY = SamplingOptions(temperature=0)


def prompt_of(tokens: int, seed: int) -> list[int]:
    """Ordinary token ids that no cache holds."""
    rng = Random(seed)
    return [rng.randrange(1000, 40000) for _ in range(tokens)]


def generate(engine: LlamaEngine, prompt: list[int], tokens: int, on_first: Callable[[], None] | None = None) -> GenerationEnd:
    """One generation, read to its end by this thread."""
    woken = threading.Event()
    options = SamplingOptions(temperature=0, max_tokens=tokens)
    generation = engine.submit(GenerationRequest(prompt_ids=prompt, sampling=options, ignore_eos=True), woken.set)
    while True:
        woken.wait()
        woken.clear()
        pieces, end = generation.take()
        if pieces and on_first is not None:
            on_first()
            on_first = None
        if end is not None:
            return end


class Numbers:
    """Each call a number not given before, so that no two prompts are equal."""

    def __init__(self) -> None:
        self._last = SEED

    def __call__(self) -> int:
        """The next one."""
        self._last += 1
        return self._last


class Watch:
    """How long calls took, all together."""

    def __init__(self) -> None:
        self.spent = 0.0

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, watched."""

        def watched(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.spent += time.perf_counter() - start

        return watched


def decode_rates(engine: LlamaEngine, path: str, threads: int, tokens: int, rounds: int) -> list[Row]:
    """Milliseconds a token while writing, prompt of 32; and how much of that is not llama_decode."""
    numbers = Numbers()
    raw = _raw_loop(engine, threads)
    outside: dict[str, list[float]] = {}

    def streamco(prompt: list[int], tokens: int) -> float:
        timings = generate(engine, prompt, tokens).timings
        return timings.decode_s / (tokens - 1) * 1e3

    def contender(name: str, run: Callable[[list[int], int], tuple[float, float]]) -> Callable[[], float]:
        def measure() -> float:
            taken, rest = run(prompt_of(32, numbers()), tokens)
            outside.setdefault(name, []).append(rest)
            return taken

        return measure

    with ChildContender(_own_stream, path, threads) as own:
        contenders = {"streamco": contender("streamco", watched(streamco)), STREAM: contender(STREAM, own)}
        contenders["llama_decode + argmax"] = contender("llama_decode + argmax", watched(raw))
        try:
            own(prompt_of(32, numbers()), 2)
        except NotOnThisProcessor as died:
            print(f"{STREAM}: {died}", file=sys.stderr)
            del contenders[STREAM]
        samples = interleave(contenders, rounds)
    rows = rows_from("engine", f"decode, {threads} threads", "time a token", "ms", samples)
    return rows + rows_from("engine", f"decode, {threads} threads", "outside llama_decode, a token", "ms", outside)


def watched(run: Callable[[list[int], int], float]) -> Callable[[list[int], int], tuple[float, float]]:
    """The contender with a second figure: milliseconds a token of all its time that is not llama_decode."""
    import llama_cpp.llama_cpp as bindings

    def measure(prompt: list[int], tokens: int) -> tuple[float, float]:
        watch = Watch()
        original = bindings.llama_decode
        bindings.llama_decode = load_library().llama_decode = watch.over(original)
        try:
            start = time.perf_counter()
            taken = run(prompt, tokens)
            return taken, (time.perf_counter() - start - watch.spent) / tokens * 1e3
        finally:
            bindings.llama_decode = load_library().llama_decode = original

    return measure


def _own_stream(path: str, threads: int) -> Callable[[list[int], int], tuple[float, float]]:
    import llama_cpp

    model = llama_cpp.Llama(path, n_ctx=2048, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False)
    ends = [token for token in range(model.n_vocab()) if llama_cpp.llama_vocab_is_eog(model._model.vocab, token)]

    def run(prompt: list[int], tokens: int) -> float:
        stream: Any = model.create_completion(prompt, max_tokens=tokens, temperature=0, stream=True, logit_bias=dict.fromkeys(ends, -1e9))
        next(stream)
        start = time.perf_counter()
        count = sum(1 for _ in stream)
        return (time.perf_counter() - start) / max(1, count) * 1e3

    return watched(run)


def _raw_loop(engine: LlamaEngine, threads: int) -> Callable[[list[int], int], float]:
    model = LlamaModel(engine.path)
    context = LlamaContext(model, cells=2048, sequences=1, rows=128, threads=threads)

    def run(prompt: list[int], tokens: int) -> float:
        context.clear()
        row = context.add_run(prompt, 0, 0, wants_logits=True)
        context.decode()
        token = int(context.logits(row).argmax())
        start = time.perf_counter()
        for position in range(len(prompt), len(prompt) + tokens - 1):
            context.add(token, position, 0, wants_logits=True)
            context.decode()
            token = int(context.logits(0).argmax())
        return (time.perf_counter() - start) / (tokens - 1) * 1e3

    return run


def prefill_rates(engine: LlamaEngine, threads: int, rounds: int) -> list[Row]:
    """Milliseconds for a prompt of 512: in chunks that can be stopped, and in one batch that can't."""
    numbers = Numbers()
    model = LlamaModel(engine.path)
    context = LlamaContext(model, cells=2048, sequences=1, rows=512, threads=threads)

    def one_batch() -> float:
        context.clear()
        context.add_run(prompt_of(512, numbers()), 0, 0, wants_logits=True)
        start = time.perf_counter()
        context.decode()
        return (time.perf_counter() - start) * 1e3

    def streamco() -> float:
        return generate(engine, prompt_of(512, numbers()), 1).timings.prefill_s * 1e3

    samples = interleave({"streamco": streamco, "llama_decode, one batch": one_batch}, rounds)
    context.close()
    model.close()
    return rows_from("engine", f"prefill of 512, {threads} threads", "time", "ms", samples)


def cancel_latency(engine: LlamaEngine, threads: int, times: int) -> list[Row]:
    """From ``cancel`` to the end in the consumer's hands, at random moments of a prefill of 512."""
    rng = Random(SEED)
    whole = generate(engine, prompt_of(512, SEED), 1).timings.prefill_s
    waits = [_cancel_once(engine, prompt_of(512, 1000 + turn), rng.uniform(0.05, 0.9) * whole) for turn in range(times)]
    waits.sort()
    case = f"cancel in prefill of 512, {threads} threads, {times} times"
    return [
        Row("engine", case, "streamco", "median", "ms", statistics.median(waits), waits[0], waits[-1]),
        Row("engine", case, "streamco", "p99", "ms", waits[min(times - 1, int(0.99 * times))], waits[0], waits[-1]),
    ]


def _cancel_once(engine: LlamaEngine, prompt: list[int], wait: float) -> float:
    woken = threading.Event()
    generation = engine.submit(GenerationRequest(prompt_ids=prompt, sampling=GREEDY), woken.set)
    time.sleep(wait)
    start = time.perf_counter()
    generation.cancel()
    while generation.take()[1] is None:
        woken.wait()
        woken.clear()
    return (time.perf_counter() - start) * 1e3


def batch_rates(engine: LlamaEngine, threads: int, tokens: int, rounds: int) -> list[Row]:
    """Tokens a second of all sequences together."""
    numbers = Numbers()

    def together(count: int) -> float:
        workers = [threading.Thread(target=generate, args=(engine, prompt_of(16, numbers()), tokens)) for _ in range(count)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return count * tokens / (time.perf_counter() - start)

    rows = []
    for count in (1, 2, 4, 8):
        rates = [together(count) for _ in range(rounds)]
        rows.append(
            summarise(
                rates, bench="engine", case=f"together, {threads} threads", contender=f"streamco x{count}", metric="all", unit="tokens/s"
            )
        )
    return rows


class _Work:
    """The part of one piece of work that the guard sees."""

    is_done = False


def guard_cost(rounds: int) -> list[Row]:
    """Nanoseconds a row of calling what uses its logits: within the guard that ends only the work of a row that fails, and bare."""
    work, guarded, rows = _Work(), EngineLoop.__dict__["_guarded"], range(100_000)

    def accept(given: _Work, row: int) -> None:
        """Do nothing: only the call is timed."""

    def with_guard() -> float:
        start = time.perf_counter()
        for row in rows:
            guarded(None, work, accept, work, row)
        return (time.perf_counter() - start) / len(rows) * 1e9

    def bare() -> float:
        start = time.perf_counter()
        for row in rows:
            accept(work, row)
        return (time.perf_counter() - start) / len(rows) * 1e9

    samples = interleave({"streamco": with_guard, "without the guard": bare}, rounds)
    return rows_from("engine", "the loop's guard of each row", "time", "ns", samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    threads: int = arguments.threads
    path = packaged_model()
    engine = LlamaEngine(path, EngineOptions(threads=threads, max_sequences=8, context_tokens=1024))
    rows = decode_rates(engine, str(path), threads, 64 if quick else 128, 3 if quick else 9)
    rows += prefill_rates(engine, threads, 2 if quick else 7)
    rows += cancel_latency(engine, threads, 16 if quick else 100)
    rows += batch_rates(engine, threads, 24 if quick else 64, 1 if quick else 3)
    rows += guard_cost(5 if quick else 21)
    engine.close()
    emit(rows, arguments.json)


if __name__ == "__main__":
    main()
