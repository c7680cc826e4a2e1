"""An endpoint that can't be reached: the device answers; without one, the error says whose fault it is and keeps the text so far."""

import asyncio

import streamco


def unreachable() -> streamco.OpenAIEndpoint:
    return streamco.OpenAIEndpoint("gpt-4o-mini", base_url="http://127.0.0.1:9/v1", retry=streamco.RetryPolicy(attempts=0))


async def main() -> None:
    async with streamco.Client(device=streamco.packaged_model(), server=unreachable(), mode=streamco.Race(policy="server-first")) as client:
        answer = await client.chat.completions.create(messages=[{"role": "user", "content": "Say hello."}], max_tokens=8)
        print(answer.choices[0].message.content)
        for part in answer.report.endpoints if answer.report else []:
            print(f"{part.name}: {part.outcome} {part.error or ''}")

    async with streamco.Client(server=unreachable()) as client:
        try:
            await client.chat.completions.create(messages=[{"role": "user", "content": "Say hello."}])
        except streamco.EndpointError as error:
            print(f"{type(error).__name__}: {error}; text so far: {error.partial!r}")


if __name__ == "__main__":
    asyncio.run(main())
