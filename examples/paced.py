"""Text at the reader's pace, piece by piece, and what the reader's experience was in figures."""

import asyncio

import streamco


async def main() -> None:
    async with streamco.Client(device=streamco.packaged_model(), pace=20) as client:
        stream = client.stream("Explain tides to a child.", max_tokens=40)
        async for token in stream:
            print(token.text, end="", flush=True)
        quality = stream.report.quality
        print(f"\nmedian gap {quality.tbt_p50 or 0:.3f} s, {quality.delayed_tokens} tokens late, score {quality.score:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
