"""The draft layer's drafts of one answer, which follow the answer's verified tokens. Belongs to the engine's thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from msgspec import Struct

from streamco.engines.llamacpp.draft_model import DraftMeta, draft_layer_folder, read_draft_meta
from streamco.engines.split.draft_layer import CANDIDATES, DraftPart
from streamco.engines.split.draft_lengths import LONGEST, Confidence, DraftLengths
from streamco.engines.split.draft_tree import Continuation, DraftTree
from streamco.engines.split.layers import HeadPart, InputPart
from streamco.engines.split.parallel_drafting import ParallelDrafting
from streamco.engines.split.tally import BranchCounts, LookupCounts
from streamco.errors import ConfigError
from streamco.policies.drafts.prompt_lookup import Match, PromptLookup
from streamco.policies.rejection import chain_rejection, rank_branches
from streamco.policies.window import Confident, Static, Threshold, WindowPolicy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    States = NDArray[np.float32]

__all__ = ["AnswerDrafts", "DraftOptions", "find_draft_layer"]

logger = logging.getLogger("streamco.engine")

_END = object()
_MAX_BRANCHES = 16  # of a round


class _Start(NamedTuple):
    """Where a branch begins: the number of accepted tokens of the draft, and the token after them."""

    position: int
    token: int


class DraftOptions(Struct, frozen=True):
    """How a split model drafts.

    Args:
        weights: path of the draft layer's weights; None for this model's weights in the package or in the user's cache folder
            (``make draft-layer``).
        window: tokens in a draft: a number from 1 to 16, or a policy. "confident" ends each draft when its next token isn't worth its time,
            given the measured times and acceptance. "threshold" ends it with the first token whose probability is below 0.6 (HAT, equation
            5). For other policies or parameters, pass a ``streamco.policies.window.WindowPolicy``.
        parallel: how many tokens at each position of a draft begin branches, which are drafted while the verdict is out; 0 for none.
            "auto" means three, if the round trip without the server's time is long enough for a draft step, and if at least a tenth of the
            verdicts match a branch. If fewer do, one round in 16 has branches.
        branches: "ranked" drafts the likeliest verdicts first, and sends a branch's draft only if it is worth more than a draft from
            verified states. "last" is the paper's rule: branches begin at the draft's last token, and are sent (HAT, section 3.5).
        lookup: if the last tokens have occurred before, in the prompt or answer, draft what followed them instead of asking the draft
            layer, as long as such tokens are accepted nearly as often as the layer's.

    Raises:
        ConfigError: a number is out of range, or there is no such policy.
    """

    weights: str | Path | None = None
    window: int | Literal["confident", "threshold"] | WindowPolicy = "confident"
    parallel: int | Literal["auto"] = "auto"
    branches: Literal["ranked", "last"] = "ranked"
    lookup: bool = True

    def __post_init__(self) -> None:
        _ = self.policy
        if self.parallel != "auto" and not (isinstance(self.parallel, int) and 0 <= self.parallel <= CANDIDATES):
            raise ConfigError(f'drafts: parallel: expected "auto" or 0 to {CANDIDATES} tokens, got {self.parallel!r}')
        if self.branches not in {"ranked", "last"}:
            raise ConfigError(f'drafts: branches: expected "ranked" or "last", got {self.branches!r}')

    @property
    def policy(self) -> WindowPolicy:
        """The window policy."""
        match self.window:
            case bool():
                pass
            case int() if 1 <= self.window <= LONGEST:
                return Static(self.window)
            case "confident":
                return Confident()
            case "threshold":
                return Threshold()
            case _ if hasattr(self.window, "propose") and hasattr(self.window, "first"):
                return cast(WindowPolicy, self.window)
        raise ConfigError(f'drafts: expected a window of 1 to {LONGEST}, "confident", "threshold" or a window policy, got {self.window!r}')


def find_draft_layer(vocabulary: str, width: int, input_layers: int) -> Path | None:
    """Return the weights file, in this package or the user's cache folder, that was trained for such a model, or None if there is none.

    A damaged file in the cache folder is ignored with a warning.

    Raises:
        ConfigError: a packaged file is damaged.
    """
    for path, meta in _trained_layers():
        if (meta.vocabulary, meta.width, meta.input_layers) == (vocabulary, width, input_layers):
            return path
    return None


def _trained_layers() -> Iterator[tuple[Path, DraftMeta]]:
    """Yield each file of weights and the model it was trained for: the packaged files first, then the cache folder's, by name."""
    for entry in files("streamco.engines.split").joinpath("draft_layers").iterdir():
        if entry.name.endswith(".npz"):
            with as_file(entry) as path:
                yield path, read_draft_meta(path)
    try:
        cached = sorted(draft_layer_folder().glob("*.npz"))
    except OSError as error:
        logger.warning("the cache folder can't be looked into for draft layers: %s", error)
        return
    for path in cached:
        try:
            yield path, read_draft_meta(path)
        except ConfigError as error:
            logger.warning("%s; left out", error)


class AnswerDrafts:
    """The drafts of one answer.

    Args:
        layer: the draft layer.
        parts: the device's input layers and head.
        sequence: sequence id in the layer and in the input layers.
        lengths: decides how long drafts are; shared by all answers of an engine.
        parallel: decides how many branches are drafted; also shared by all answers.
        options: says which branches are drafted.

    Attributes:
        counts: counts of branches drafted while verdicts were out.
        lookups: counts of tokens drafted from earlier text.
    """

    def __init__(
        self,
        layer: DraftPart,
        parts: tuple[InputPart, HeadPart],
        *,
        sequence: int,
        lengths: DraftLengths,
        parallel: ParallelDrafting,
        options: DraftOptions,
    ) -> None:
        self.counts, self.lookups = BranchCounts(), LookupCounts()
        self._lookup = PromptLookup()
        self._tree = DraftTree(layer, parts, sequence=sequence)
        self._lengths, self._parallel = lengths, parallel
        self._options = options
        self._has_prompt = False
        self._path: Continuation = ()  # the answer's last token and its draft, which are out
        self._confidences: list[Confidence] = []  # of the draft
        self._is_branch = False  # the draft is a branch's
        self._began: float | None = None  # time at which its round began; None if its time tells nothing about drafts
        self._sent_at = 0.0
        self._most = 0  # most tokens of a path
        self._plan: Iterator[None] | None = None  # what to draft while the verdict is out; None if there is nothing more
        self._has_branches = False  # the round has begun one

    @property
    def has_prompt(self) -> bool:
        """True once the prompt has been read."""
        return self._has_prompt

    def record(self, shallow: States, deep: States, position: int) -> None:
        """Take verified tokens: first the prompt's, later a token and its accepted draft tokens.

        Args:
            shallow: their states after the input layers, shape (tokens, width).
            deep: the server's states of the last tokens, shape (tokens or fewer, width). Not all of a prompt's states are sent.
            position: position of the first token.
        """
        self._tree.record(shallow, deep, position)
        if not self._has_prompt:
            self._has_prompt = True
            self._tree.start(position + len(shallow))
            return
        self._tree.advance(self._path[: len(deep)])
        self._record_verdict(len(deep) - 1)
        if self._began is not None:
            self._lengths.record_round(len(deep), monotonic() - self._began)

    def _record_verdict(self, accepted: int) -> None:
        self._lengths.record_verdict(self._confidences, accepted, is_branch=self._is_branch)
        self.record_accepted(accepted)
        if self._is_branch:
            self.counts.sent += 1
            self.counts.sent_tokens += len(self._confidences)
            self.counts.accepted += accepted

    def record_accepted(self, count: int) -> None:
        """Count the looked-up tokens among the ``count`` accepted ones. After an answer's last round, nothing else must be recorded."""
        self.lookups.accepted += sum(isinstance(each, Match) for each in self._confidences[:count])

    def record_arrival(self) -> None:
        """Record that the deep states have arrived, so nothing more is drafted before the verdict is known."""
        self._plan = None
        if self._began is not None:
            self._lengths.record_wait(monotonic() - self._sent_at)

    def record_loss(self) -> None:
        """Record that a session was lost in this round, so that the round's time tells nothing about drafts."""
        self._began = None

    # Drafts

    def make(self, tokens: Sequence[int], most: int) -> tuple[list[int], list[States]]:
        """Return a draft that follows the last token, and the shallow states of that token and of the draft.

        Args:
            tokens: tokens of prompt and answer, the last of which the input layers have not read.
            most: maximum length of the draft.
        """
        self._began, self._confidences, self._path = monotonic(), [], (tokens[-1],)
        if self._options.lookup:
            self._lookup.extend(tokens[len(self._lookup) :])
        window = min(most, self._lengths.window())
        self._is_branch = self._takes_branch(window)
        if not self._is_branch:
            self._tree.forget_guesses()
        self._tree.row(self._path)
        match = self._match()
        while len(self._confidences) < window and self._extend(match):
            match = self._match()
            if self._lengths.should_end(self._confidences, is_lookup=match is not None):
                break
        self._most = 1 + most
        branching = self._parallel.tokens(self._lengths.step_seconds)
        self._plan = self._draft_branches(branching) if branching else None
        self._sent_at = monotonic()
        return list(self._path[1:]), [self._tree.row(self._path[:end]) for end in range(1, len(self._path) + 1)]

    def _takes_branch(self, window: int) -> bool:
        """Return True if a branch begins with the answer's last token, and its draft should be sent as it is."""
        is_hit = self._tree.has_guess(self._path)
        self.counts.hits += is_hit
        if self._has_branches:
            self._parallel.record_verdict(is_hit=is_hit)
        self._has_branches = False
        if not is_hit or not window or not self._is_drafted(self._path):
            return False
        return self._options.branches == "last" or self._lengths.should_send_branch(window)

    def _is_drafted(self, path: Continuation) -> bool:
        """Return True if the token after a path is already drafted, so that no step is needed."""
        return self._tree.has_guess(path) and self._tree.has_row((*path, self._tree.guess(path).ids[0]))

    def _match(self) -> Match | None:
        """Return the token that earlier text proposes after the draft so far, or None if the draft layer should guess."""
        match = self._lookup.next_token(self._path[1:]) if self._options.lookup and not self._is_branch else None
        return match if match is not None and self._lengths.should_look_up(match) else None

    def _extend(self, match: Match | None) -> bool:
        """Add a token to the draft. Returns False if the draft came from a branch or was looked up, and has no more tokens."""
        if match is not None:
            self._look_up(match)
            return True
        if self._is_branch and not self._is_drafted(self._path):
            return False
        if self._confidences and isinstance(self._confidences[-1], Match):
            return False  # the draft layer would have to read all of them
        began, rows, is_step = monotonic(), self._tree.rows, not self._tree.has_guess(self._path)
        self._path, confidence = self._next(self._path)
        if is_step:
            self._lengths.record_step(monotonic() - began, has_row=self._tree.rows == rows)
        self._confidences.append(confidence)
        return True

    def _look_up(self, match: Match) -> None:
        began, rows = monotonic(), self._tree.rows
        self._path = (*self._path, match.token)
        self._tree.row(self._path)
        if self._tree.rows > rows:
            self._lengths.record_lookup(monotonic() - began)
        self._confidences.append(match)
        self.lookups.drafted += 1

    def _next(self, path: Continuation) -> tuple[Continuation, float]:
        """Return a path with the likeliest next token, and its probability."""
        guess = self._tree.guess(path)
        longer = (*path, guess.ids[0])
        self._tree.row(longer)
        return longer, guess.probabilities[0]

    # While the verdict is out

    @property
    def can_predraft(self) -> bool:
        """True if there is more to draft, and time for it before the verdict is expected (equation 6)."""
        return self._plan is not None and monotonic() - self._sent_at + self._lengths.step_seconds <= self._lengths.wait

    def predraft(self) -> None:
        """Draft one more step along a possible verdict."""
        if self._plan is not None and next(self._plan, _END) is _END:
            self._plan = None

    def _draft_branches(self, tokens: int) -> Iterator[None]:
        """Draft branches that begin with this many tokens at each position. Each iteration runs at most one draft step, with its row."""
        if self._is_branch:
            self._tree.forget_guesses()
        for end in range(1, len(self._path) + 1):
            if not self._tree.has_guess(self._path[:end]):
                self._tree.guess(self._path[:end])
                yield
        for branch in self._rank(tokens)[:_MAX_BRANCHES]:
            path = (*self._path[: 1 + branch.position], branch.token)
            if len(path) > self._most or self._tree.has_guess(path):
                continue
            self.counts.begun += 1
            self._has_branches = True
            self._tree.row(path)
            yield
            confidences: list[Confidence] = []
            while len(path) < self._most and len(confidences) < self._lengths.usual_window:
                path, confidence = self._next(path)
                confidences.append(confidence)
                yield
                if self._lengths.should_end(confidences):
                    break

    def _rank(self, count: int) -> list[_Start]:
        """Return the beginnings of branches, at most ``count`` at each position, likeliest first."""
        path = self._path
        guesses = [self._tree.guess(path[:end]) for end in range(1, len(path) + 1)]
        if self._options.branches == "last":
            after, last = _Start(len(path) - 1, guesses[-1].ids[0]), guesses[-2] if len(path) > 1 else guesses[-1]
            others = [_Start(max(0, len(path) - 2), token) for token in last.ids[:count] if token not in path[-1:]]
            return [after, *others]
        acceptance = [self._lengths.acceptance(confidence) for confidence in self._confidences]
        candidates = [list(zip(guess.ids, guess.probabilities, strict=True)) for guess in guesses]
        usual = self._lengths.usual_acceptance
        ranked = rank_branches(chain_rejection(acceptance), path[1:], candidates, usual, count)
        return [_Start(branch.position, branch.token) for branch in ranked if branch.token is not None]

    def close(self) -> None:
        """Free the memory that the draft layer uses for this answer."""
        self._plan = None
        self._tree.close()
