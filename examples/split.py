"""A model in three parts: both ends answer on this machine, a server computes the middle, and no token or text goes to it."""

import asyncio
import tempfile

import streamco
from streamco.engines import EngineOptions, split_model  # split_model: what `streamco split` does
from streamco.testing import running_server  # `streamco serve` in a process of its own


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        parts = await asyncio.to_thread(split_model, streamco.packaged_model(), folder)
        async with running_server("--model", str(parts.middle), "--middle", "--threads", "1", "--port", "0") as base_url:
            device = streamco.SplitEndpoint(parts.stem, base_url, options=EngineOptions(threads=1))
            async with streamco.Client(mode=streamco.Split(device)) as client:
                async for token in client.stream("Name three rivers in France.", max_tokens=24, temperature=0):
                    print(token.text, end="", flush=True)
            sent = device.traffic
            print(f"\n{sent.rows_up} states up in {sent.bytes_up} bytes, {sent.rows_down} states down in {sent.bytes_down} bytes")


if __name__ == "__main__":
    asyncio.run(main())
