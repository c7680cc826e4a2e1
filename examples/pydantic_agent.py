"""An agent of pydantic-ai over a client in the same process; its output keeps to a schema, also on the device."""

import asyncio
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent

import streamco
from streamco.integrations.pydantic_ai import StreamcoModel


class Animal(BaseModel):
    """What the agent answers."""

    name: Literal["ant", "cat", "hen"]
    legs: Literal[2, 4, 6]


async def main() -> None:
    async with streamco.Client(device=streamco.packaged_model()) as client:  # add server=streamco.OpenAIEndpoint("gpt-4o-mini")
        agent = Agent(StreamcoModel(client), output_type=Animal)
        result = await agent.run("Name an animal and the number of its legs.", model_settings={"temperature": 0})
        print(result.output)
        details = result.response.provider_details or {}
        print(f"{details['streamco']['winner']} won, {result.usage.output_tokens} tokens")


if __name__ == "__main__":
    asyncio.run(main())
