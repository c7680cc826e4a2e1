"""Two callers of one proxy: alice has half a dollar a day for the server; bob has nothing, so that the device answers alone."""

import asyncio
import tempfile
from pathlib import Path

import openai

import streamco
from streamco.proxy import ProxyOptions, add_caller, serving
from streamco.testing import ScriptedServer, stream_answer


async def main(file: Path) -> None:
    keys = {name: add_caller(file, name, budget=dollars, rate=60) for name, dollars in (("alice", 0.50), ("bob", 0.0))}
    async with ScriptedServer(stream_answer(["Clipping", " paper", "."])) as remote:
        prices = streamco.TokenPrices(prompt=1e-6, completion=2e-6)
        server = streamco.OpenAIEndpoint("large", base_url=remote.url, api_key="", name="server", prices=prices)
        async with (
            streamco.Client(streamco.packaged_model(), server, mode=streamco.Race(policy="server-first")) as client,
            serving(client, ProxyOptions(callers=file)) as base_url,
        ):
            for name, key in keys.items():
                async with openai.AsyncOpenAI(base_url=base_url, api_key=key) as caller:
                    create = caller.chat.completions.with_raw_response.create
                    answer = await create(model="streamco", messages=[{"role": "user", "content": "What is a clip for?"}], max_tokens=20)
                    left = answer.headers.get("x-streamco-budget", "not used up")
                    print(f"{name}: {answer.headers['x-streamco-winner']} won, budget {left}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "callers.sqlite"))
