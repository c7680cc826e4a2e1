"""Check an installed streamco, without its clone: every public name, the compiled leaves against their twins, an answer that changes hands.

    python bench/release/check_wheel.py [--native | --pure]

It needs nothing except what streamco itself depends on. ``--native`` and ``--pure``: the leaves must be compiled, or must not be.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import random
import sys
from pathlib import Path

import streamco
from streamco import _native as native
from streamco._native import pacedring_py, ring_py, ssescan_py, tokenpack_py, topk_py
from streamco.testing import Cut, ScriptedResponse, ScriptedServer, chunk_event, stream_answer

ROUNDS = 300
TOLERANCE = 1e-5  # of a probability: sums of float32 in another order


def main() -> int:
    """Run the checks; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--native", action="store_true", help="the leaves must be compiled")
    parser.add_argument("--pure", action="store_true", help="the leaves must not be compiled")
    options = parser.parse_args()
    where = Path(streamco.__file__).resolve().parent
    if where == Path(__file__).resolve().parents[2] / "streamco":
        print(f"expected an installed package, got the clone's at {where}", file=sys.stderr)
        return 1
    if (options.native and not native.HAS_NATIVE) or (options.pure and native.HAS_NATIVE):
        print(
            f"expected {'compiled' if options.native else 'pure'} leaves, got the others: {native.WHY_PURE or 'compiled'}", file=sys.stderr
        )
        return 1
    names = load_names()
    compare_twins(random.Random(7))
    text = asyncio.run(answer())
    assert text == "The connection is cut here.", text
    leaves = f"compiled leaves equal to their twins in {ROUNDS} rounds" if native.HAS_NATIVE else "pure leaves"
    print(
        f"streamco {streamco.__version__} on Python {sys.version.split()[0]}: {names} public names, {leaves}, an answer that changed hands"
    )
    return 0


def load_names() -> int:
    """Load every public name whose packages are there; the number of names.

    llama.cpp and OpenTelemetry are extras: names that need them raise ImportError without them, and nothing else.
    """
    for name in streamco.__all__:
        try:
            getattr(streamco, name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in {"llama_cpp", "opentelemetry"}:
                raise
    return len(streamco.__all__)


def compare_twins(rng: random.Random) -> None:
    """Give the leaves and their twins the same random input; all results must be equal."""
    for _ in range(ROUNDS):
        bits = rng.randint(1, 32)
        ids = [rng.getrandbits(bits) for _ in range(rng.randint(0, 60))]
        packed = native.pack(ids, bits)
        assert packed == tokenpack_py.pack(ids, bits)
        assert native.unpack(packed, bits, len(ids)) == tokenpack_py.unpack(packed, bits, len(ids)) == ids
        row = array.array("f", [rng.gauss(0, 5) for _ in range(rng.randint(1, 200))])
        count = rng.randint(1, 10)
        assert native.argmax(row) == topk_py.argmax(row)
        best, twins = native.top_k(row, count), topk_py.top_k(row, count)
        assert [place for place, _ in best] == [place for place, _ in twins]
        assert all(abs(ours[1] - other[1]) < TOLERANCE for ours, other in zip(best, twins, strict=True))
        chance = rng.random()
        assert native.sample_row(row, 0.8, 40, 0.95, 0.0, chance) == topk_py.sample_row(row, 0.8, 40, 0.95, 0.0, chance)
        data = b"".join(rng.choice((b"data: {}\n\n", b"data: x\n", b"\n", b": c\n\n", b"event: a\r\n")) for _ in range(rng.randint(0, 12)))
        assert native.scan_events(data, 1 << 16) == ssescan_py.scan_events(data, 1 << 16)
        compare_rings(rng)


def compare_rings(rng: random.Random) -> None:
    """Run the same random calls on both rings and both paced rings."""
    rings = native.Ring[int](8), ring_py.Ring[int](8)
    paced = native.PacedRing[int](0.1, 0.01), pacedring_py.PacedRing[int](0.1, 0.01)
    now = 0.0
    for step in range(rng.randint(1, 40)):
        now += rng.random() * 0.2
        if rng.random() < 0.6:
            assert rings[0].push(step) == rings[1].push(step)
            for ring in paced:
                ring.push(1 + step % 3, step, now)
        else:
            assert rings[0].drain(2) == rings[1].drain(2)
            assert paced[0].release(now) == paced[1].release(now)
        assert len(rings[0]) == len(rings[1])
        assert paced[0].next_due() == paced[1].next_due()


async def answer() -> str:
    """Return the text of an answer whose first server dies in mid-sentence."""
    can_continue = streamco.Capabilities(continuation="continue_final_message")
    dying = ScriptedResponse(steps=(chunk_event("The connection"), chunk_event(" is"), Cut()))
    async with ScriptedServer(dying) as first, ScriptedServer(stream_answer([" cut", " here."])) as second:
        servers = [
            streamco.OpenAIEndpoint("any", base_url=each.url, name=name, capabilities=can_continue)
            for name, each in (("first", first), ("second", second))
        ]
        async with streamco.Client(server=servers) as client:
            return "".join([token.text async for token in client.stream("What happens?")])


if __name__ == "__main__":
    sys.exit(main())
