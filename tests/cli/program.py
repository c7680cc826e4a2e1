"""The real ``streamco chat`` over endpoints that play a script: what the terminal tests start as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from streamco.cli import chat
from streamco.cli.main import main
from streamco.endpoints.base import Capabilities, Kind, Request, TokenPrices
from streamco.errors import EndpointConnectError, EndpointTimeoutError
from streamco.openai_types import CompletionUsage
from streamco.testing.endpoint import ScriptedStream, ScriptItem
from tests.client.helpers import ShapedDevice

DOCUMENT = "# Title\n\nSome **bold** text.\n\n```python\nprint(1)\n```\n\n- one\n- two\n"
Script = Sequence[tuple[float, ScriptItem]]


class Actor(ShapedDevice):
    """Plays the script that the prompt names; any other prompt is told back, with the number of messages that came with it."""

    def __init__(self, name: str, kind: Kind, first: float) -> None:
        prices = TokenPrices(prompt=0.0, completion=0.0) if kind == "device" else TokenPrices(prompt=1e-6, completion=2e-6)
        can = Capabilities(continuation="token_ids", pre_copy="append") if kind == "device" else Capabilities()
        super().__init__(name, kind=kind, tokens=10, prices=prices, usage=CompletionUsage(10, 5, 15), capabilities=can)
        self._first = first

    def open(self, request: Request) -> ScriptedStream:
        """Choose the script before it begins."""
        messages = request.messages or []
        self.script = list(self._choose(str(messages[-1]["content"]), len(messages)))
        self.ends_after = 0.0
        return super().open(request)

    def _choose(self, prompt: str, messages: int) -> Script:
        first = self._first
        match prompt:
            case "slow":
                return [(first + number * 0.05, f"word{number} ") for number in range(400)]
            case "story":  # the device would be late, but it can go on
                first = 60.0 if self.kind == "device" else 0.1
                return [(first + number * 0.02, f"word{number} ") for number in range(90)]
            case "silence":
                return [(first, None)]
            case "long":
                return [(first, "".join(f"{number}. item number {number}\n" for number in range(1, 121)))]
            case "markdown":
                return [(first + index * 0.005, character) for index, character in enumerate(DOCUMENT)]
            case "broken":
                error = EndpointTimeoutError("expected a token within 30 s, got none", phase="next_token", limit=30.0, endpoint=self.name)
                return [(first, "Half an "), (first + 0.02, "answer"), (first + 0.05, error)]
            case "dead":
                return [(first, EndpointConnectError("expected a connection, got it refused", endpoint=self.name))]
        return [(first + index * 0.01, word) for index, word in enumerate(("You ", "said ", f"'{prompt}' ", f"in {messages} messages."))]


if __name__ == "__main__":
    chat.make_device = lambda args: None if args.no_device else Actor("device", "device", 0.02)
    chat.make_server = lambda args: Actor("server", "server", 0.5)
    sys.exit(main(["chat", *sys.argv[1:]]))
