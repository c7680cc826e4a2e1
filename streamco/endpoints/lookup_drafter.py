"""Drafts by prompt lookup (``policies.drafts.prompt_lookup``): on the speculator's commands, drafts are copied from earlier text.

``LookupDrafter`` takes the same commands as ``DeviceDrafter`` but has no model. It emits the tokens that it finds in the loop's next
iteration. ``LookupEndpoint`` takes the device's place in reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, assert_never

from streamco.core.speculation.events import AdoptBranch, DraftBranch, DraftToken, DraftTokens, DropDrafts, TokensDrafted
from streamco.endpoints.base import Capabilities, Kind, Request, TokenPrices
from streamco.engines.base import TokenVocabulary
from streamco.errors import EngineError, UsageError
from streamco.policies.drafts.prompt_lookup import PromptLookup, match_confidence
from streamco.wire.verify.topk import MAX_WEIGHT, TopK

__all__ = ["LookupDrafter", "LookupEndpoint"]

_FREE = TokenPrices(prompt=0.0, completion=0.0)


class LookupDrafter:
    """Drafts an answer's next tokens by looking them up in the text so far.

    Args:
        prompt_ids: the prompt, which isn't counted in lengths and positions.
        emit: called with each draft, on the loop and never from inside ``run``.
        context_tokens: size of the verifier's context, prompt and answer together.
        end_ids: tokens that end a text.
        is_sampled: True if each token needs the row that it was drawn from; here a row contains only the token itself.

    Raises:
        EngineError: the prompt doesn't fit.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        *,
        emit: Callable[[TokensDrafted], None],
        context_tokens: int,
        end_ids: frozenset[int] = frozenset(),
        is_sampled: bool = False,
    ) -> None:
        if not 0 < len(prompt_ids) < context_tokens:
            raise EngineError(f"prompt: expected 1 to {context_tokens - 1} tokens (the context is {context_tokens}), got {len(prompt_ids)}")
        self.prompt_ids = list(prompt_ids)
        self.end_ids = end_ids
        self._emit = emit
        self._is_sampled = is_sampled
        self._loop = asyncio.get_running_loop()
        self._lookup = PromptLookup()
        self._trunk = list(prompt_ids)  # prompt, answer and the trunk's draft
        self._branches: dict[int, list[int]] = {}
        self._waiting: dict[int, asyncio.Handle] = {}  # drafts to emit

    def run(self, command: DraftTokens | DraftBranch | AdoptBranch | DropDrafts) -> None:
        """Start carrying out a command; never blocks. Nothing is emitted after ``aclose``.

        Raises:
            UsageError: the trunk is shorter than a command's length, or the branch to adopt doesn't exist.
        """
        match command:
            case DraftTokens(version, length, ids, count):
                self._trunk = self._draft(version, self._prefix(length) + list(ids), count)
            case DraftBranch(version, length, ids, count):
                self._branches[version] = self._draft(version, self._prefix(length) + list(ids), count)
            case AdoptBranch(version):
                if version not in self._branches:
                    raise UsageError(f"branch {version}: expected one of {sorted(self._branches)}, got none of them")
                self._trunk = self._branches.pop(version)
            case DropDrafts(versions):
                for version in versions:
                    self._branches.pop(version, None)
                    if (handle := self._waiting.pop(version, None)) is not None:
                        handle.cancel()
            case _ as never:
                assert_never(never)

    async def aclose(self) -> None:
        """Stop emitting; idempotent."""
        for handle in self._waiting.values():
            handle.cancel()
        self._waiting.clear()

    def _prefix(self, length: int) -> list[int]:
        """Return the prompt and the first ``length`` tokens of the trunk's answer."""
        has = len(self._trunk) - len(self.prompt_ids)
        if not 0 <= length <= has:
            raise UsageError(f"draft: expected a length of 0 to {has}, got {length}")
        return self._trunk[: len(self.prompt_ids) + length]

    def _draft(self, version: int, ids: list[int], count: int) -> list[int]:
        """Look up at most ``count`` tokens that may follow these ids, and schedule an event with them; return the ids and the tokens."""
        self._lookup.follow(ids)
        found, match = self._lookup.continuation(count)
        end = next((place for place, token in enumerate(found, 1) if token in self.end_ids), len(found))
        tokens = tuple(self._token(token, match + place) for place, token in enumerate(found[:end]))
        self._waiting[version] = self._loop.call_soon(self._emit_draft, TokensDrafted(version, tokens))
        return [*ids, *found[:end]]

    def _token(self, token: int, match: int) -> DraftToken:
        row = TopK((token,), (MAX_WEIGHT,)) if self._is_sampled else None
        return DraftToken(token, match_confidence(match), row=row)

    def _emit_draft(self, event: TokensDrafted) -> None:
        del self._waiting[event.version]
        self._emit(event)


class LookupEndpoint:
    """Takes the place of a device, but drafts by lookup. It has no model and writes no answers.

    Args:
        vocabulary: the verifier's vocabulary.
        read_prompt: returns the token ids of a request's prompt; its second argument is the server's time limit in seconds.
    """

    kind: Kind = "device"
    name = "lookup"
    prices = _FREE

    def __init__(self, vocabulary: TokenVocabulary, read_prompt: Callable[[Request, float], Awaitable[list[int]]]) -> None:
        self.vocabulary = vocabulary
        self._read_prompt = read_prompt

    @property
    def capabilities(self) -> Capabilities:
        """The verifier's vocabulary, and the context size of its model."""
        info = self.vocabulary.info
        return Capabilities(vocabulary=info.vocabulary, context_tokens=info.context_tokens)

    async def start(self) -> None:
        """Do nothing, because there is nothing to load."""

    async def aclose(self) -> None:
        """Do nothing, because there is nothing to free."""

    def open(self, request: Request) -> NoReturn:
        """Raise an error, because there is no model.

        Raises:
            UsageError: always.
        """
        raise UsageError("lookup: expected a draft to be asked for, got a whole answer")

    def count_tokens(self, request: Request) -> int | None:
        """Return None, because a prompt's length is only known once it has been read."""
        return None

    async def drafter(self, request: Request, *, emit: Callable[[TokensDrafted], None], is_sampled: bool, patience: float) -> LookupDrafter:
        """Read the prompt, and return a drafter for one answer.

        Args:
            request: the request.
            emit: see ``LookupDrafter``.
            is_sampled: see ``LookupDrafter``.
            patience: seconds that a server may take to read the prompt.

        Raises:
            EndpointError: the prompt can't be read, or doesn't fit.
        """
        info = self.vocabulary.info
        ids = await self._read_prompt(request, patience)
        return LookupDrafter(ids, emit=emit, context_tokens=info.context_tokens, end_ids=info.end_ids, is_sampled=is_sampled)
