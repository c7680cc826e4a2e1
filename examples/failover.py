"""A server that dies in mid-sentence: another endpoint goes on from the last good token, and the reader notices nothing."""

import asyncio

import streamco
from streamco.testing import Cut, ScriptedResponse, ScriptedServer, chunk_event, stream_answer

CAN_CONTINUE = streamco.Capabilities(continuation="continue_final_message")


def server_at(url: str, name: str) -> streamco.OpenAIEndpoint:
    return streamco.OpenAIEndpoint("any", base_url=url, name=name, capabilities=CAN_CONTINUE)


async def main() -> None:
    dying = ScriptedResponse(steps=(chunk_event("The connection"), chunk_event(" is"), Cut()))
    async with (
        ScriptedServer(dying) as first,
        ScriptedServer(stream_answer([" cut", " here."])) as second,
        streamco.Client(server=[server_at(first.url, "first"), server_at(second.url, "second")]) as client,
    ):
        stream = client.stream("What happens?")
        async for token in stream:
            print(token.text, end="", flush=True)
        for change in stream.report.hand_overs:
            print(f"\n{change.target} took over from {change.source} after token {change.position}: {change.reason}")


if __name__ == "__main__":
    asyncio.run(main())
