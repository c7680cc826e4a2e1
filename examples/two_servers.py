"""Two remote models race, by a policy of your own: the second one is asked if the first has said nothing for half a second."""

import asyncio
from random import Random

import streamco
from streamco.testing import ScriptedServer, stream_answer


class HalfASecondLater:
    """Ask the first server at once, and the second one half a second later, unless the first has answered by then."""

    name = "half a second later"

    def decide(self, length: int, rng: Random) -> streamco.Decision:
        """Return when each starts: the endpoint in the place of ``device``, and the one in the place of ``server``."""
        return streamco.Decision(0.0, 0.5, policy=self.name, reason="one first, two after half a second")


async def main() -> None:
    async with (
        ScriptedServer(stream_answer([" Slow", " today", "."], first=5.0)) as busy,
        ScriptedServer(stream_answer([" Here", " at", " once", "."])) as idle,
    ):
        one = streamco.OpenAIEndpoint("any", base_url=busy.url, api_key="", name="one")
        two = streamco.OpenAIEndpoint("any", base_url=idle.url, api_key="", name="two")
        async with streamco.Client(one, two, budget=1.0, mode=streamco.Race(policy=HalfASecondLater())) as client:
            stream = client.stream("How are you?")
            print("".join([token.text async for token in stream]))
        print(f"{stream.report.winner} won: {stream.report.dispatch.reason}")


if __name__ == "__main__":
    asyncio.run(main())
