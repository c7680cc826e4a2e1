"""Background tasks: a front end's requests for titles, tags and follow-up questions, which the device answers alone.

Open WebUI sends up to four requests per message, and the user reads the answer to one of them. A caller can mark a background task with a
header, or a rule recognises it by its last message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from streamco.endpoints.base import TASK_HEADER, Message, Request
from streamco.errors import ConfigError

__all__ = ["OPEN_WEBUI", "TASK_HEADER", "TaskRules", "check_patterns"]

OPEN_WEBUI = r"### Task:\n"
"""The beginning of the messages with which Open WebUI asks for titles, tags, follow-up questions and search terms."""

_LONGEST_PATTERN = 1000  # characters
_LOOKED_AT = 4000  # characters of a message


class TaskRules:
    """The rules by which a proxy recognises background tasks.

    Args:
        patterns: regular expressions. A request is a background task if the beginning of its last message matches one of them.
        takes_header: True if callers may mark and name a task with the header ``x-streamco-task``.
    """

    def __init__(self, patterns: Sequence[str], *, takes_header: bool) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._takes_header = takes_header

    def name_of(self, request: Request, headers: Mapping[str, str]) -> str:
        """Return the name of the background task that a request belongs to, or "" if it isn't a background task.

        Args:
            request: the request; only the beginning of its last message's text is checked.
            headers: the caller's headers.
        """
        named = headers.get(TASK_HEADER, "") if self._takes_header else ""
        if named:
            return named
        text = _last_text(request)
        return "recognised" if any(pattern.match(text) for pattern in self._patterns) else ""


def check_patterns(patterns: Sequence[str]) -> None:
    """Check that all are valid regular expressions of a reasonable length.

    Raises:
        ConfigError: one isn't.
    """
    for pattern in patterns:
        if len(pattern) > _LONGEST_PATTERN:
            raise ConfigError(f"tasks.patterns: expected at most {_LONGEST_PATTERN} characters each, got {len(pattern)}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"tasks.patterns: expected regular expressions, got {pattern!r}: {error}") from error


def _last_text(request: Request) -> str:
    """Return the beginning of the last message's text, or "" if it has none."""
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
