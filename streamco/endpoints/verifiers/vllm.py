"""Uses vLLM as a verifier: ``/v1/completions`` with ``prompt_logprobs``.

vLLM reads the whole prompt again in every round, because it doesn't use its prefix cache if the prompt's log-probabilities are requested
(vllm#17251, #28194). So a round costs a prefill of context and draft. The server's ``--max-logprobs`` (by default 20) limits the ids in a
row.

From the response time, any client that guesses a prompt can tell whether the prompt's beginning is in that cache. So a verifier's requests
carry their own salt, and other clients never hit what these requests left in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamco.endpoints.base import Request
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.openai_stream import CallApi
from streamco.endpoints.verifiers.logprob import LogprobVerifier
from streamco.errors import EndpointStatusError
from streamco.wire.prompt_logprobs import PromptLogprobs, read_vllm, vllm_request

__all__ = ["VLLMVerifier"]


class _SaltedEndpoint(OpenAIEndpoint):
    """The server's completions API with the verifier's salt, so that it can use what the verifier's rounds left in the cache."""

    def __init__(self, salt: Callable[[], str | None], model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._salt = salt

    def _build_body(self, request: Request, model: str, extra: Mapping[str, Any]) -> tuple[CallApi, str, dict[str, Any]]:
        salt = self._salt()
        return super()._build_body(request, model, extra if salt is None else {"cache_salt": salt, **extra})


class VLLMVerifier(LogprobVerifier):
    """An unmodified vLLM server as a verifier; see ``LogprobVerifier`` for the arguments."""

    provider = "vllm"

    def _request(self, ids: Sequence[int], pending: int, top: int) -> tuple[str, dict[str, Any]]:
        return self._address.url("/completions"), vllm_request(self._model or "", ids, pending, top, salt=self._salt)

    def _read(self, answer: bytes, ids: Sequence[int], pending: int) -> PromptLogprobs:
        return read_vllm(answer, ids, pending)

    def _make_remote(self, model: str, **options: Any) -> OpenAIEndpoint:
        return _SaltedEndpoint(lambda: self._salt, model, **options)

    async def _probe_top_k(self, sample: Sequence[int]) -> int:
        """Do the same as ``LogprobVerifier``, but without the salt if the server doesn't know that field."""
        salt = self._salt
        try:
            return await super()._probe_top_k(sample)
        except EndpointStatusError as error:
            if error.status not in {400, 422} or salt is None:
                raise
        self._salt = None
        try:
            return await super()._probe_top_k(sample)
        except BaseException:
            self._salt = salt
            raise
