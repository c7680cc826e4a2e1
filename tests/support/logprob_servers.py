"""Scripted vLLM and SGLang servers that return a prompt's log-probabilities, with a function in place of the model.

They follow the servers' sources, oddities included. vLLM (``prompt_logprobs``) writes -9999 for the logarithm of 0, and refuses requests
for more ids in a row than its limit. SGLang (``/generate``) has an empty first row, and no rows for tokens from its cache.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamco.events import common_prefix_length
from streamco.sim.workload.token_models import TokenModel
from streamco.testing.responses import DONE, RecordedRequest, ScriptedResponse, json_answer, sse_event
from streamco.testing.server import ScriptedServer

__all__ = ["ScriptedSGLang", "ScriptedVLLM"]

Corruption = Callable[[Any], Any]
_Row = list[tuple[int, float]]  # (id, log-probability), best first


class _LogprobServer(ScriptedServer):
    """The base of both servers.

    Args:
        target: the target model: ids so far to the probabilities of the next id.
        tokenize: function from a text to its ids.
        model: name of the model.
        key: bearer token that requests must carry; None: no token needed.
        context_tokens: limit for prompt and answer together.
        max_logprobs: largest number of ids in a row.
        tls: serve https with this context.
    """

    def __init__(
        self,
        target: TokenModel,
        tokenize: Callable[[str], Sequence[int]],
        *,
        model: str = "scripted",
        key: str | None = None,
        context_tokens: int = 4096,
        max_logprobs: int = 20,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(json_answer({"detail": "Not Found"}, status=404), tls=tls)
        self.target = target
        self.model = model
        self.key = key
        self.context_tokens = context_tokens
        self.max_logprobs = max_logprobs
        self.answered = 0  # requests for log-probabilities so far
        self._tokenize = tokenize
        self._plan: list[ScriptedResponse | Corruption | None] = []
        self._serve("/v1/models", self._list_models)
        self._serve("/tokenize", lambda request: json_answer({"tokens": list(tokenize(request.json()["prompt"]))}))
        self._serve("/v1/completions", self._complete)

    def plan(self, *steps: ScriptedResponse | Corruption | None) -> None:
        """Set the answers to the next requests for log-probabilities.

        Args:
            *steps: a response, a function that changes the JSON of the correct answer, or None: the correct answer.
        """
        self._plan = list(steps)

    def _serve(self, path: str, answer: Callable[[RecordedRequest], ScriptedResponse]) -> None:
        def admit(request: RecordedRequest) -> ScriptedResponse:
            if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
                return json_answer({"error": {"message": "Unauthorized"}}, status=401)
            return answer(request)

        self.route(path, admit)

    def _give(self, body: Any) -> ScriptedResponse:
        self.answered += 1
        step = self._plan.pop(0) if self._plan else None
        if isinstance(step, ScriptedResponse):
            return step
        return json_answer(body if step is None else step(body))

    def _refuse(self, message: str, status: int = 400) -> ScriptedResponse:
        return json_answer({"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}, status=status)

    def _list_models(self, request: RecordedRequest) -> ScriptedResponse:
        entry = {"id": self.model, "object": "model", "owned_by": type(self).__name__.removeprefix("Scripted").lower()}
        return json_answer({"object": "list", "data": [{**entry, "max_model_len": self.context_tokens}]})

    def _row(self, ids: Sequence[int]) -> _Row:
        shares = self.target(ids)
        pairs = [(token, math.log(share) if share > 0 else -math.inf) for token, share in shares.items()]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))

    def _check(self, ids: list[int], asked: int) -> ScriptedResponse | None:
        if len(ids) + 1 > self.context_tokens:
            return self._refuse(f"This model's maximum context length is {self.context_tokens} tokens, got {len(ids) + 1}")
        if asked > self.max_logprobs:
            return self._refuse(f"Requested prompt logprobs of {asked}, which is greater than max allowed: {self.max_logprobs}")
        return None

    def _complete(self, request: RecordedRequest) -> ScriptedResponse:
        body = request.json()
        return self._stream(body) if body.get("stream") else self._score(body)

    def _score(self, body: Mapping[str, Any]) -> ScriptedResponse:
        return self._refuse("no scores here", 404)

    def _stream(self, body: Mapping[str, Any]) -> ScriptedResponse:
        """Stream the greedy text after a prompt of ids, with its ids."""
        ids, steps = list(body["prompt"]), []
        for _ in range(body["max_tokens"]):
            token = self._row(ids)[0][0]
            ids.append(token)
            choice = {"index": 0, "text": f" {token}", "token_ids": [token], "finish_reason": None}
            steps.append(sse_event({"id": "cmpl-1", "object": "text_completion", "choices": [choice]}))
        end = {"index": 0, "text": "", "finish_reason": "length"}
        steps += [sse_event({"id": "cmpl-1", "object": "text_completion", "choices": [end]}), DONE]
        return ScriptedResponse(headers={"Content-Type": "text/event-stream"}, steps=steps)


class ScriptedVLLM(_LogprobServer):
    """A server like vLLM 0.32 at ``/v1/completions``.

    Sources: entrypoints/openai/completion/serving.py, sampling_params.py, v1/engine/logprobs.py.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._serve("/version", lambda request: json_answer({"version": "0.32.0"}))

    def _score(self, body: Mapping[str, Any]) -> ScriptedResponse:
        ids, asked = list(body["prompt"]), body.get("prompt_logprobs") or 0
        refusal = self._check(ids, max(asked, body.get("logprobs") or 0))
        if refusal is not None:
            return refusal
        rows: list[dict[str, Any] | None] = [None]
        rows += [self._entries(self._row(ids[:position]), ids[position], asked) for position in range(1, len(ids))]
        last = self._row(ids)
        token = last[0][0]
        choice = {
            "index": 0,
            "text": f" {token}",
            "finish_reason": "length",
            "token_ids": [token],
            "prompt_token_ids": ids,
            "prompt_logprobs": rows if asked else None,
            "logprobs": {"top_logprobs": [{f"token_id:{known}": max(value, -9999.0) for known, value in last[: body["logprobs"]]}]},
        }
        return self._give({"id": "cmpl-1", "object": "text_completion", "model": self.model, "choices": [choice]})

    def _entries(self, row: _Row, own: int, count: int) -> dict[str, Any]:
        """Return the entries of a row. The prompt's own token comes first with its true rank, then the best ids with theirs."""
        rank = next((rank for rank, (token, _) in enumerate(row, 1) if token == own), len(row) + 1)
        value = dict(row).get(own, -math.inf)
        listed = [(rank, own, value), *((rank, *pair) for rank, pair in enumerate(row[:count], 1))]
        return {str(token): {"logprob": max(value, -9999.0), "rank": rank, "decoded_token": f" {token}"} for rank, token, value in listed}


class ScriptedSGLang(_LogprobServer):
    """A server like SGLang at ``/generate``.

    Sources: managers/tokenizer_manager.py, and managers/schedule_batch.py for the tokens that come from the cache.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._known: list[int] = []
        self._serve("/get_model_info", lambda request: json_answer({"model_path": self.model, "is_generation": True}))
        self._serve("/generate", self._generate)

    def _generate(self, request: RecordedRequest) -> ScriptedResponse:
        body = request.json()
        ids, start, count = list(body["input_ids"]), body["logprob_start_len"], body["top_logprobs_num"]
        refusal = self._check(ids, 0)
        if refusal is not None:
            return refusal
        cached = min(len(ids) - 1, start, common_prefix_length(ids, self._known))
        self._known = ids
        own: list[Any] = [[None, ids[start], None]]
        top: list[Any] = [None]
        for position in range(start + 1, len(ids)):
            row = self._row(ids[:position])
            own.append([_finite(dict(row).get(ids[position], -math.inf)), ids[position], None])
            top.append([[_finite(value), token, None] for token, value in row[:count]])
        last = self._row(ids)
        meta = {
            "id": "1",
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": len(ids),
            "completion_tokens": 1,
            "cached_tokens": cached,
            "input_token_logprobs": own,
            "input_top_logprobs": top,
            "output_token_logprobs": [[_finite(last[0][1]), last[0][0], None]],
            "output_top_logprobs": [[[_finite(value), token, None] for token, value in last[:count]]],
        }
        return self._give({"text": f" {last[0][0]}", "output_ids": [last[0][0]], "meta_info": meta})


def _finite(value: float) -> float | None:
    """Return a log-probability; None (null) if it is infinite, because JSON has no infinity."""
    return None if math.isinf(value) else value
