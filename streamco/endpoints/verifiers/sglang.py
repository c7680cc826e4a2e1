"""Uses SGLang as a verifier: ``/generate`` with ``logprob_start_len`` one position before the draft.

Everything before that position comes from SGLang's radix cache, so a round computes only the draft and one token. This has been tested
against a scripted server that follows the format in SGLang's source, not against SGLang itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamco.endpoints.verifiers.logprob import LogprobVerifier
from streamco.wire.prompt_logprobs import PromptLogprobs, read_sglang, sglang_request

__all__ = ["SGLangVerifier"]


class SGLangVerifier(LogprobVerifier):
    """An unmodified SGLang server as a verifier; see ``LogprobVerifier`` for the arguments."""

    provider = "sglang"

    def _request(self, ids: Sequence[int], pending: int, top: int) -> tuple[str, dict[str, Any]]:
        return self._address.root_url("/generate"), sglang_request(ids, pending, top)

    def _read(self, answer: bytes, ids: Sequence[int], pending: int) -> PromptLogprobs:
        return read_sglang(answer, ids, pending)
