"""A chain of LangChain over a client in the same process; the last chunk of its stream brings usage and report."""

import asyncio
from typing import Any

from langchain_core.prompts import ChatPromptTemplate

import streamco
from streamco.integrations.langchain import ChatStreamco


async def main() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "Name three uses of a {thing}.")])
    async with streamco.Client(device=streamco.packaged_model()) as client:  # add server=streamco.OpenAIEndpoint("gpt-4o-mini")
        chain = prompt | ChatStreamco(client=client, max_tokens=60)
        report: dict[str, Any] = {}
        async for message in chain.astream({"thing": "paper clip"}):
            print(message.content, end="", flush=True)
            report = message.response_metadata.get("report", report)
    print(f"\n{report['winner']} won, {report['tokens']} tokens")


if __name__ == "__main__":
    asyncio.run(main())
