"""vLLM as a verifier: ``/v1/completions`` with ``prompt_logprobs``.

It reads the whole prompt anew in every round, for it doesn't use its prefix cache where the prompt's log-probabilities are wanted
(vllm#17251, #28194): a round costs a prefill of context and draft. How many ids a row may have is the server's ``--max-logprobs``, 20
where nothing is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamco.endpoints.stock import StockVerifier
from streamco.wire.scores import Scores, read_vllm, vllm_request

__all__ = ["VLLMVerifier"]


class VLLMVerifier(StockVerifier):
    """A vLLM server as it is; see ``StockVerifier`` for the arguments."""

    provider = "vllm"

    def _request(self, ids: Sequence[int], pending: int, top: int) -> tuple[str, dict[str, Any]]:
        return self._address.url("/completions"), vllm_request(self._model or "", ids, pending, top)

    def _read(self, answer: bytes, ids: Sequence[int], pending: int) -> Scores:
        return read_vllm(answer, ids, pending)
