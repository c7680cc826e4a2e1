"""An MCP server with one tool, for agents: it speaks on its standard input and output, and begins with no package but Python's own."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {"name": "read", "description": "Read the disk.", "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            about = {"name": "disk", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{params['arguments']['name']}: swordfish"}]}
    return {}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = result_of(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
