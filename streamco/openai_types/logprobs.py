"""Log-probabilities with the attributes that they have in OpenAI's SDK, stored in the dicts that servers send.

A server's log-probabilities are passed on unchanged, because some servers add fields, and the completions API uses different ones. So these
types are dicts, which are encoded unchanged, with OpenAI's fields as attributes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

__all__ = ["ChoiceLogprobs", "TokenLogprobs", "TopLogprob"]


class _Fields(dict[str, Any]):
    """A dict whose fields can also be read as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (name not in self and name not in type(self).__annotations__):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.get(name)

    def model_dump(self) -> dict[str, Any]:
        """Return the content as plain dicts and lists."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


class TopLogprob(_Fields):
    """One of the likeliest tokens at a position: its text, the text's bytes and its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(_Fields):
    """A token of the answer, its bytes, its log-probability, and the likeliest tokens at its position."""

    token: str
    logprob: float
    bytes: list[int] | None

    @property
    def top_logprobs(self) -> list[TopLogprob]:
        """The likeliest tokens at this position, best first; [] if none were requested."""
        return _entries(self, "top_logprobs", TopLogprob) or []


class ChoiceLogprobs(_Fields):
    """The log-probabilities of a choice's text and, separately, of its refusal."""

    @property
    def content(self) -> list[TokenLogprobs] | None:
        """The tokens of the text, in order, or None if there are none."""
        return _entries(self, "content", TokenLogprobs)

    @property
    def refusal(self) -> list[TokenLogprobs] | None:
        """The tokens of a refusal, in order, or None if there are none."""
        return _entries(self, "refusal", TokenLogprobs)


_Entry = TypeVar("_Entry", bound=_Fields)


class _Entries(list[_Entry]):
    """A list whose dicts have been converted to their type; its class shows that this needn't be done again."""


def _entries(fields: _Fields, name: str, kind: type[_Entry]) -> list[_Entry] | None:
    """Convert a list field's dicts to ``kind``, store the list and return it; return None if there is no list."""
    found = fields.get(name)
    if type(found) is not _Entries and isinstance(found, list):
        fields[name] = found = _Entries(kind(each) if type(each) is dict else each for each in found)
    return found if isinstance(found, list) else None
