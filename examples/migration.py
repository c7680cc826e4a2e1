"""A dear server begins an answer, the model on this machine reads along and finishes it: the bill shrinks, the reader sees no pause."""

import asyncio
from itertools import groupby

import streamco
from streamco.testing import ScriptedServer, stream_answer

TEXT = "The sea rises and falls twice a day. This is called the tide, and it is made by the Moon and the Sun."
DEAR = streamco.TokenPrices(prompt=5e-6, completion=30e-6)  # US dollars per token


async def main() -> None:
    device = streamco.DeviceEndpoint(streamco.packaged_model(), options=streamco.engines.EngineOptions(threads=1))
    async with ScriptedServer(stream_answer([f" {word}" for word in TEXT.split()] * 5, gap=0.05)) as scripted:
        server = streamco.OpenAIEndpoint("any", base_url=scripted.url, name="server", prices=DEAR)
        moves = streamco.MigrationOptions(min_quality=0)  # no model is too weak to go on; 0.9: one with 90 % of the other's quality
        async with streamco.Client(
            device, server, mode=streamco.Race(policy="both", migration=moves), budget=1.0, pace=10, seed=1
        ) as client:
            stream = client.stream("Explain tides to a child.", max_tokens=60, temperature=0)
            tokens = [token async for token in stream]
        for source, written in groupby(tokens, key=lambda token: token.source):
            print(f"{source}:{''.join(token.text for token in written)}")
        report = stream.report
        for change in report.hand_overs:
            print(f"{change.target} went on after token {change.position}, {change.buffered} tokens ahead of the reader: {change.reason}")
            print(f"saved ${change.saved_usd or 0:.5f}, paid ${report.cost_usd or 0:.5f}")
        print(f"{report.quality.delayed_tokens} of {report.tokens} tokens late")


if __name__ == "__main__":
    asyncio.run(main())
