"""Proposals from a small model in the same process: its greedy continuation of each answer, in the engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from streamco.core.speculation.averages import DecayedRatio, Ewma
from streamco.engines.answer_drafts import Proposal
from streamco.engines.generation import RunningGeneration
from streamco.engines.llamacpp.context import LlamaContext
from streamco.engines.llamacpp.model import LlamaModel
from streamco.engines.sampling import top_probabilities
from streamco.engines.threads import ThreadShare
from streamco.errors import ConfigError, EngineError
from streamco.events import common_prefix_length
from streamco.policies.drafts.confidence_calibration import ConfidenceCalibration

__all__ = ["ModelSource"]

_ROWS = 128  # of a batch in which a prompt is read
_ACCEPTANCE, _PRIOR_TOKENS, _MEMORY = 0.7, 8.0, 0.98  # of draft tokens, until it is known


class ModelSource:
    """Proposes what a small model would write.

    Args:
        path: the small model's GGUF file.
        target: the model whose answers are drafted.
        answers: maximum number of answers at once; each has a place in the small model's memory.
        tokens: size of each place in tokens.
        share: number of threads that compute.
        clock: returns monotonic time in seconds.

    Raises:
        EngineError: the file can't be loaded, or there is not enough memory.
        ConfigError: the models have different vocabularies, or tokens can't be removed from the small one's memory.
    """

    def __init__(
        self,
        path: Path,
        target: LlamaModel,
        *,
        answers: int,
        tokens: int,
        share: ThreadShare,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._model = model = LlamaModel(path)
        rows = max(_ROWS, answers)
        try:
            if model.info.vocabulary != target.info.vocabulary:
                raise ConfigError(f"draft: expected a model with the vocabulary of {target.path.name}, got {path.name} with another one")
            if not model.can_share_prefixes:
                raise ConfigError(f"draft: expected a model without recurrent states or sliding windows, got {path.name}")
            self._context = LlamaContext(model, cells=answers * tokens + rows, sequences=answers, rows=rows, threads=share.threads)
        except BaseException:
            model.close()
            raise
        self._share = share
        self._clock = clock
        self._free = list(range(answers))
        self._places: dict[RunningGeneration, int] = {}
        self._held: list[list[int]] = [[] for _ in range(answers)]  # tokens in each place
        self._settled = [0] * answers  # how many of them belong to the answer, not to a draft
        self._owners: list[str | None] = [None] * answers  # owner of what each place holds
        self._steps: dict[int, Ewma] = {}  # seconds of a step, by the number of answers
        self._by_confidence = ConfidenceCalibration(_ACCEPTANCE)
        self._accepted = DecayedRatio(_MEMORY, _ACCEPTANCE, _PRIOR_TOKENS)

    @property
    def acceptance(self) -> float:
        """Chance that a token of a draft is accepted if all tokens before it are, 0..1."""
        return self._accepted.value

    def step(self, answers: int) -> float:
        """Return how many seconds a step takes for this many answers, or for the nearest known number; 0 if none is known."""
        if not self._steps:
            return 0.0
        return self._steps[min(self._steps, key=lambda known: abs(known - answers))].value

    def propose(self, answers: Sequence[RunningGeneration], longest: int, token_seconds: float) -> list[Proposal]:
        """Return the small model's continuations, or none for an answer that it must read more of first (it reads a piece per batch).

        Raises:
            EngineError: the small model doesn't run.
        """
        self._context.use_threads(self._share.threads)
        drafts = {answer: _Draft(min(longest, answer.room - 1)) for answer in answers if answer.room > 1}
        writing = self._read(list(drafts))
        while writing:
            expected = sum(drafts[answer].chance for answer in writing)
            if drafts[writing[0]].tokens and expected * token_seconds < self.step(len(writing)):
                break
            began = self._clock()
            self._decode(writing, drafts)
            self._steps.setdefault(len(writing), Ewma(0.0, first_weight=1.0)).record(self._clock() - began)
            writing = [answer for answer in writing if len(drafts[answer].tokens) < drafts[answer].most]
        return [drafts[answer].proposal if answer in drafts else Proposal() for answer in answers]

    def _read(self, answers: Sequence[RunningGeneration]) -> list[RunningGeneration]:
        """Read one batch of missing tokens, and return the answers that have only their last token left to decode."""
        ready: list[RunningGeneration] = []
        context = self._context
        for answer in answers:
            assert answer.slot is not None, "it is being written"
            ids, place = answer.slot.ids, self._place_of(answer)
            held = self._held[place]
            shared = common_prefix_length(held, ids, min(self._settled[place], len(held), len(ids)))
            if shared < len(held):
                context.remove(place, shared)
                del held[shared:]
            piece = ids[shared : shared + context.rows - context.count]
            if piece:
                context.add_run(piece, shared, place, wants_logits=0)
                held += piece
            self._settled[place] = len(held)
            if len(held) == len(ids):
                ready.append(answer)
        if context.count:
            self._run()
        return ready

    def _place_of(self, answer: RunningGeneration) -> int:
        """Return an answer's place. A new answer gets the free place that holds most of its text, read for the same owner."""
        place = self._places.get(answer)
        if place is None:
            assert answer.slot is not None, "it is being written"
            owner, ids = answer.request.owner, answer.slot.ids
            shared = {each: common_prefix_length(self._held[each], ids) if self._owners[each] == owner else 0 for each in self._free}
            place = self._places[answer] = max(shared, key=lambda each: (shared[each], -len(self._held[each])))
            self._free.remove(place)
            self._settled[place] = 0
            if self._owners[place] != owner:
                self._context.remove(place, 0)
                self._held[place].clear()
                self._owners[place] = owner
        return place

    def _decode(self, answers: Sequence[RunningGeneration], drafts: dict[RunningGeneration, _Draft]) -> None:
        """Add a token to each answer's draft."""
        context = self._context
        for answer in answers:
            place, draft = self._places[answer], drafts[answer]
            last = draft.tokens[-1] if draft.tokens else answer.next_token
            assert last is not None, "it has a token to continue from"
            context.add(last, len(self._held[place]), place, wants_logits=True)
            self._held[place].append(last)
        self._run()
        for row, answer in enumerate(answers):
            ((token, confidence),) = top_probabilities(context.logits(row), 1)
            drafts[answer].add(token, confidence, self._by_confidence.acceptance(confidence))

    def _run(self) -> None:
        status = self._context.decode()
        if status != 0:
            raise EngineError(f"draft: expected 0 from llama_decode of {self._model.path.name}, got {status}")

    def record(self, answer: RunningGeneration, proposal: Proposal, right: int, *, is_wrong: bool) -> None:
        """Learn how often tokens are right, overall and by their confidence."""
        for place in range(right + is_wrong):
            self._accepted.record(float(place < right))
            self._by_confidence.record(proposal.evidence[place], is_accepted=place < right)

    def forget(self, answer: RunningGeneration) -> None:
        """Give back an answer's place, which keeps its tokens because the next answer may begin with them."""
        place = self._places.pop(answer, None)
        if place is not None:
            self._free.append(place)

    def close(self) -> None:
        """Free the memory; idempotent."""
        self._context.close()
        self._model.close()


class _Draft:
    """The draft of one answer, of at most ``most`` tokens, and the chance that all of it is accepted."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.tokens: list[int] = []
        self.chance = 1.0
        self._chances: list[float] = []
        self._confidences: list[float] = []

    def add(self, token: int, confidence: float, acceptance: float) -> None:
        self.tokens.append(token)
        self.chance *= acceptance
        self._chances.append(self.chance)
        self._confidences.append(confidence)

    @property
    def proposal(self) -> Proposal:
        return Proposal(self.tokens, self._chances, self._confidences)
