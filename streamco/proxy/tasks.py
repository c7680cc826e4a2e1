"""Background tasks: requests of a front end for titles, tags and follow-up questions, which the device answers alone.

Open WebUI sends up to four requests a message, of which the user reads one. A caller names such a request by a header; or a rule recognises
it by its last message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from streamco.endpoints.base import TASK_HEADER, Message, Request
from streamco.errors import ConfigError

__all__ = ["OPEN_WEBUI", "TASK_HEADER", "TaskRules", "check_patterns"]

OPEN_WEBUI = r"### Task:\n"
"""Beginning of the messages by which Open WebUI asks for titles, tags, follow-up questions and search terms."""

_LONGEST_PATTERN = 1000  # characters
_LOOKED_AT = 4000  # characters of a message


class TaskRules:
    """The rules of a proxy.

    Args:
        patterns: regular expressions, each of which the last message of a background task begins with.
        takes_header: True if callers may name a task by ``x-streamco-task``.
    """

    def __init__(self, patterns: Sequence[str], *, takes_header: bool) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._takes_header = takes_header

    def name_of(self, request: Request, headers: Mapping[str, str]) -> str:
        """Return the name of the background task that a request is; "": it is none.

        Args:
            request: the request; only the text of its last message is looked at, and only the beginning.
            headers: the caller's headers.
        """
        named = headers.get(TASK_HEADER, "") if self._takes_header else ""
        if named:
            return named
        text = _last_text(request)
        return "recognised" if any(pattern.match(text) for pattern in self._patterns) else ""


def check_patterns(patterns: Sequence[str]) -> None:
    """Check that all are regular expressions of a usual length.

    Raises:
        ConfigError: one is none.
    """
    for pattern in patterns:
        if len(pattern) > _LONGEST_PATTERN:
            raise ConfigError(f"tasks.patterns: expected at most {_LONGEST_PATTERN} characters each, got {len(pattern)}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"tasks.patterns: expected regular expressions, got {pattern!r}: {error}") from error


def _last_text(request: Request) -> str:
    """Return the beginning of the last message's text; "": it has none."""
    if request.messages is None:
        return (request.prompt or "")[:_LOOKED_AT]
    last: Message = request.messages[-1] if request.messages else {}
    content = last.get("content")
    if isinstance(content, str):
        return content[:_LOOKED_AT]
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text")
        return next((text[:_LOOKED_AT] for text in texts if isinstance(text, str)), "")
    return ""
