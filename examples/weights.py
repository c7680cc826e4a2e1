"""Time, money and quality have a worth, and each answer is made in the way that costs least by it."""

import asyncio
from collections import Counter

import streamco
from streamco.testing import ScriptedServer, stream_answer

CHEAP = streamco.TokenPrices(prompt=0.15e-6, completion=0.6e-6)  # US dollars per token
QUALITY = {"device": 0.4, "server": 0.7}  # as measured, or as you judge them
PROMPTS = ("When does the sun shine?", "Name a river.", "What is two and two?", "Say hello.")


async def main() -> None:
    race = streamco.Race(migration=streamco.MigrationOptions(quality=QUALITY))
    kinds = {
        "money counts": streamco.Auto(race, money=1.0),
        "time counts": streamco.Auto(race, time=0.001, money=0.1),
        "quality counts": streamco.Auto(race, money=1.0, quality=0.01),
    }
    async with ScriptedServer(stream_answer([" By", " day."])) as scripted:
        device = streamco.DeviceEndpoint(streamco.packaged_model(), name="device")
        server = streamco.OpenAIEndpoint("any", base_url=scripted.url, name="server", prices=CHEAP)
        async with streamco.Client(device, server) as client:
            for kind, mode in kinds.items():
                weighing, winners = client.with_options(mode=mode), Counter[str | None]()
                for prompt in PROMPTS:
                    stream = weighing.stream(prompt, max_tokens=20)
                    assert "".join([token.text async for token in stream])
                    winners[stream.report.winner] += 1
                print(f"{kind}: {', '.join(f'{count} by the {winner}' for winner, count in winners.most_common())}")
    print(f"\n{stream.report}")


if __name__ == "__main__":
    asyncio.run(main())
