"""Many answers at once over one client, and a second client with other settings over the same endpoints."""

import asyncio

import streamco

QUESTIONS = ["What is rain?", "What is snow?", "What is wind?"]


async def ask(client: streamco.Client, question: str) -> str:
    text = ""
    async with client.stream(question, max_tokens=16, temperature=0) as stream:
        async for token in stream:
            text += token.text
    return text


async def main() -> None:
    async with streamco.Client(device=streamco.packaged_model()) as client:
        answers = await asyncio.gather(*(ask(client, question) for question in QUESTIONS))
        for question, answer in zip(QUESTIONS, answers, strict=True):
            print(f"{question} {answer.strip()}")
        print(await ask(client.with_options(pace="reading"), "Count to three."))


if __name__ == "__main__":
    asyncio.run(main())
