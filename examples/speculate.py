"""The device drafts, a server verifies: the answer is the server's own, token for token, though the device wrote most of it."""

import asyncio

import streamco
from streamco.engines import EngineOptions, derived
from streamco.testing import running_server  # `streamco serve` in a process of its own


async def main() -> None:
    large = streamco.packaged_model()
    small = await asyncio.to_thread(derived, large, "Q4_0")  # a smaller quantisation of the same model drafts for it
    options = EngineOptions(threads=1)  # the client adds the places that drafts need
    async with (
        running_server("--model", str(large), "--threads", "1", "--port", "0") as base_url,
        streamco.Client(
            streamco.DeviceEndpoint(small, options=options),
            streamco.OpenAIEndpoint("large", base_url=base_url, name="server"),
            mode=streamco.Speculate(is_adaptive=False),  # draft always; by default only while it is faster
        ) as client,
    ):
        stream = client.stream("Why is the sky blue?", max_tokens=48, temperature=0)
        async for token in stream:
            print(token.text, end="", flush=True)
        done = stream.report.speculation
        if done is None:
            raise SystemExit(f"not speculated: {stream.report.dispatch.reason}")
        print(f"\n{done.accepted} tokens the device's, {done.corrected + done.bonus} the server's, {done.remote} by the server alone")
        print(f"{done.rounds} rounds, {done.bytes_up} bytes up, {done.acceptance or 0:.0%} accepted, exact: {done.is_exact}")


if __name__ == "__main__":
    asyncio.run(main())
