"""A laptop's battery says what the device's energy is worth: the emptier it is, the more the server does."""

import asyncio
from pathlib import Path

import streamco
from streamco.testing import ScriptedServer, stream_answer

CHEAP = streamco.TokenPrices(prompt=0.15e-6, completion=0.6e-6)  # US dollars per token


def battery() -> int | None:
    """Return how full the battery is that this machine runs on, in percent; None: there is none, or it isn't in use."""
    for supply in sorted(Path("/sys/class/power_supply").glob("*")):
        files = [supply / name for name in ("type", "status", "capacity", "scope")]
        kind, status, percent, scope = (file.read_text().strip() if file.is_file() else "" for file in files)
        if kind == "Battery" and status == "Discharging" and percent and scope != "Device":  # a mouse has one, too
            return int(percent)
    return None


def exchange_rate() -> float:
    """Return US dollars per million GFLOPs: 0.3 on mains or a full battery, 5 on an empty one."""
    left = battery()
    return 0.3 if left is None else 0.3 + 4.7 * (1 - left / 100)


async def main() -> None:
    left = battery()
    print(f"{'no battery in use' if left is None else f'battery at {left} %'}: a million GFLOPs cost ${exchange_rate():.2f}")
    async with ScriptedServer(stream_answer([" By", " day."])) as scripted:
        server = streamco.OpenAIEndpoint("any", base_url=scripted.url, name="server", prices=CHEAP)
        async with streamco.Client(streamco.packaged_model(), server, mode=streamco.Race(exchange_rate=exchange_rate)) as client:
            stream = client.stream("When does the sun shine?", max_tokens=20)
            print("".join([token.text async for token in stream]))
    print(f"the {stream.report.winner} answered, and the budget limits the {stream.report.dispatch.constraint}")


if __name__ == "__main__":
    asyncio.run(main())
