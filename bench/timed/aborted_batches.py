"""How much sooner does a device get its verdict if the batch before it is aborted, because the device that it was for has gone?

A server with the packaged model on one thread, in this process and without sockets. One device closes its session at a random moment of
its batch: that of a round, or of a prompt. At that moment another device sends a round, which waits until the batch has ended. ``aborted``
is the server as it is; ``read to the end`` is the same server without the cancel. The time that is saved is computing that would have been
for nothing. A batch in which other devices have rows goes on; so the gain is that of servers with few devices.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from random import Random
from typing import Any

from bench.report import Row, add_arguments, emit, rows_from
from streamco.core.verifier.options import LoadLimits
from streamco.engines.base import EngineOptions
from streamco.engines.llama import LlamaEngine
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.policies.acceptance import Rule
from streamco.server.verify.options import VerifyOptions
from streamco.server.verify.sessions import SessionManager
from streamco.wire.verify.codec import VerifyCodec
from streamco.wire.verify.frames import Close, Draft, Hello, Open, Opened, Refusal, ServerFrame, VerdictFrame
from streamco.wire.verify.server import VerifyServer

BENCH = "aborted_batches"
SEED = 31
WINDOW = 4
PROMPT = 384  # tokens: three batches
CONTEXT = 512
KINDS = {"a prompt": True, "a round": False}
CONTENDERS = ("aborted", "read to the end")


class Peer:
    """One device's connection, without a socket."""

    def __init__(self, host: SessionManager, engine: LlamaEngine, name: str) -> None:
        self.device = self.peer = name
        self.owner: str | None = None
        self._host = host
        self._codec = VerifyCodec(engine.info.vocabulary_size)
        self.server = VerifyServer(self._codec, engine.info.vocabulary)
        self.sessions = self.rounds = 0
        self._said = asyncio.Queue[ServerFrame]()
        self.server.receive(self._codec.encode(Hello(1, 1, engine.info.vocabulary, engine.info.vocabulary_size)))
        self.server.welcome()
        self.flush()
        host.join(self)

    def flush(self) -> None:
        """Take what the server says."""
        for message in self.server.take_messages():
            self._said.put_nowait(self._codec.decode_down(message))

    def say(self, frame: Open | Draft | Close) -> None:
        """Send a frame."""
        received: Any = self.server.receive(self._codec.encode(frame))
        self._host.handle(self, received)

    async def hear(self, kind: type[ServerFrame]) -> None:
        """Wait for a frame of this kind."""
        while not isinstance(frame := await self._said.get(), kind):
            if isinstance(frame, Refusal):
                raise frame.error()

    async def open(self, ids: tuple[int, ...]) -> int:
        """Open a session."""
        self.sessions += 1
        self.say(Open(self.sessions, Rule(), 0, 0, ids))
        await self.hear(Opened)
        return self.sessions

    def draft(self, session: int, base: int, ids: tuple[int, ...]) -> None:
        """Send a round."""
        self.rounds += 1
        self.say(Draft(session, self.rounds, base, 0, ids))


def some_ids(engine: LlamaEngine, rng: Random, count: int) -> tuple[int, ...]:
    """Ids that no other session begins with."""
    return tuple(rng.randrange(1000, engine.info.vocabulary_size) for _ in range(count))


async def trial(host: SessionManager, engine: LlamaEngine, *, is_prompt: bool, seconds: float, rng: Random) -> float:
    """Close a session after these seconds of its batch; return the milliseconds that another device's round then takes."""
    gone, kept = Peer(host, engine, "gone"), Peer(host, engine, "kept")
    context = some_ids(engine, rng, 48)
    session = await kept.open(context)
    kept.draft(session, len(context), ())
    await kept.hear(VerdictFrame)
    if is_prompt:
        closed = await gone.open(some_ids(engine, rng, PROMPT))
    else:
        read = some_ids(engine, rng, 48)
        closed = await gone.open(read)
        gone.draft(closed, len(read), ())
        await gone.hear(VerdictFrame)
        gone.draft(closed, len(read), some_ids(engine, rng, WINDOW))
    await asyncio.sleep(seconds)
    began = time.perf_counter()
    gone.say(Close(closed))
    kept.draft(session, len(context), some_ids(engine, rng, WINDOW))
    await kept.hear(VerdictFrame)
    took = time.perf_counter() - began
    kept.say(Close(session))
    host.leave(gone)
    host.leave(kept)
    return 1000 * took


async def batch_seconds(engine: LlamaEngine, *, is_prompt: bool, rng: Random) -> float:
    """Return what a batch takes alone."""
    sequence, ended = engine.hold(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(ended.set)

    ids = some_ids(engine, rng, engine.batch_tokens if is_prompt else WINDOW + 1)
    began = time.perf_counter()
    task = sequence.read(ids, wake)
    while task.take()[1] is None:
        await ended.wait()
        ended.clear()
    seconds = time.perf_counter() - began
    sequence.close()
    return seconds


async def measure(trials: int) -> list[Row]:
    """Every kind of batch, the contenders in turn."""
    options = EngineOptions(threads=1, context_tokens=CONTEXT, max_sequences=1, held_sequences=4)
    engine = await asyncio.to_thread(LlamaEngine, packaged_model(), options)
    rows: list[Row] = []
    try:
        load = LoadLimits(draft_stretch=math.inf, late_stretch=math.inf, prefill_within=math.inf)
        hosts = {name: SessionManager(engine, VerifyOptions(resume_s=0, load=load)) for name in CONTENDERS}
        hosts["read to the end"]._runner.cancel = lambda session: None  # type: ignore[method-assign]
        for kind, is_prompt in KINDS.items():
            rng = Random(f"{SEED} {kind}")
            alone = sorted([await batch_seconds(engine, is_prompt=is_prompt, rng=rng) for _ in range(5)])[2]
            found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
            for _ in range(trials):
                seconds = rng.random() * alone
                for name in CONTENDERS:
                    found[name].append(await trial(hosts[name], engine, is_prompt=is_prompt, seconds=seconds, rng=rng))
            case = f"closed in the middle of {kind}, {trials} times"
            rows += rows_from(BENCH, case, "the other device's verdict", "ms", found)
            saved = [after - before for before, after in zip(found["aborted"], found["read to the end"], strict=True)]
            mean = sum(saved) / len(saved)
            rows.append(Row(BENCH, case, "aborted", "sooner, mean", "ms", mean, min(saved), max(saved)))
        for name, host in hosts.items():
            count = host.figures()["aborted_batches"]
            assert isinstance(count, int)
            rows.append(Row(BENCH, "both", name, "batches aborted", "", count, count, count))
            host.close()
    finally:
        await asyncio.to_thread(engine.close)
    return rows


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--trials", type=int, default=None, help="sessions that are closed, of each kind (default: 40; with --quick 8)")
    args = parser.parse_args()
    emit(asyncio.run(measure(args.trials or (8 if args.quick else 40))), args.json, against="aborted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
