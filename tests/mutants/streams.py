"""The small streams that mutants are made from: well-formed answers of 0.5 to 5 kB."""

from __future__ import annotations

from collections.abc import Sequence

from tests.mutants.chat_streams import CHAT
from tests.mutants.stream import Stream
from tests.mutants.typed_streams import MESSAGES, RESPONSES

SMALL: Sequence[Stream] = (*CHAT, *RESPONSES, *MESSAGES)
