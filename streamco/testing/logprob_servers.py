"""Stock servers that score prompts, with a function in place of the model: as vLLM answers ``prompt_logprobs``, as SGLang ``/generate``.

They follow the formats of the servers' sources, down to their oddities: vLLM writes -9999 for the logarithm of 0, caps the ids of a row
and refuses more; SGLang's first row is empty, and what it took from its cache has none.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamco.partial import common_prefix_length
from streamco.sim.workload.token_models import TokenModel
from streamco.testing.responses import DONE, RecordedRequest, ScriptedResponse, json_answer, sse_event
from streamco.testing.server import ScriptedServer

__all__ = ["ScriptedSGLang", "ScriptedVLLM"]

Corruption = Callable[[Any], Any]
_Row = list[tuple[int, float]]  # (id, log-probability), best first


class _LogprobServer(ScriptedServer):
    """What both have in common.

    Args:
        target: what follows which ids.
        tokenize: reads a text into ids.
        model: its name.
        key: bearer token that is wanted; None: none.
        context_tokens: prompt and answer together.
        max_logprobs: ids that a row may have.
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
        self.answered = 0  # requests that were answered with scores
        self._tokenize = tokenize
        self._plan: list[ScriptedResponse | Corruption | None] = []
        self._serve("/v1/models", self._list_models)
        self._serve("/tokenize", lambda request: json_answer({"tokens": list(tokenize(request.json()["prompt"]))}))
        self._serve("/v1/completions", self._complete)

    def plan(self, *steps: ScriptedResponse | Corruption | None) -> None:
        """What becomes of the next requests for scores: another answer, a spoilt one (its JSON is changed), the true one (None)."""
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
        """Greedy text behind a prompt of ids, with its ids."""
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
    """vLLM 0.32's ``/v1/completions``: entrypoints/openai/completion/serving.py, sampling_params.py, v1/engine/logprobs.py."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._serve("/version", lambda request: json_answer({"version": "0.32.0"}))

    def _score(self, body: Mapping[str, Any]) -> ScriptedResponse:
        ids, asked = list(body["prompt"]), body.get("prompt_logprobs") or 0
        refusal = self._check(ids, max(asked, body.get("logprobs") or 0))
        if refusal is not None:
            return refusal
        rows: list[dict[str, Any] | None] = [None]
        rows += [self._entries(self._row(ids[:at]), ids[at], asked) for at in range(1, len(ids))]
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
        """Return the prompt's own token comes first with its true rank; where it is among the best, their ranks hold."""
        rank = next((place for place, (token, _) in enumerate(row, 1) if token == own), len(row) + 1)
        value = dict(row).get(own, -math.inf)
        listed = [(rank, own, value), *((place, *pair) for place, pair in enumerate(row[:count], 1))]
        return {str(token): {"logprob": max(value, -9999.0), "rank": place, "decoded_token": f" {token}"} for place, token, value in listed}


class ScriptedSGLang(_LogprobServer):
    """SGLang's ``/generate``: managers/tokenizer_manager.py, managers/schedule_batch.py (what the cache may give)."""

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
        for at in range(start + 1, len(ids)):
            row = self._row(ids[:at])
            own.append([_finite(dict(row).get(ids[at], -math.inf)), ids[at], None])
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
    """JSON has no infinity: it is written as null."""
    return None if math.isinf(value) else value
