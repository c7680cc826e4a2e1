"""Drafts and branches of one answer: rows are those of the tokens, memories hold what they should, and verdicts find their branches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.split.draft_layer import DraftPart
from streamco.engines.split.draft_lengths import DraftLengths
from streamco.engines.split.drafts import AnswerDrafts, DraftOptions
from streamco.engines.split.layers import HeadPart, InputPart
from streamco.engines.split.parallel_drafting import ParallelDrafting
from streamco.errors import ConfigError
from streamco.policies.window import Threshold, WindowPolicy
from tests.engines.split.scripted_parts import DEPTHS, VOCABULARY, ScriptedHead, ScriptedInput, ScriptedLayer, state_of

PROMPT = [3, 1, 4]
Branches = Literal["ranked", "last"]
Parallel = int | Literal["auto"]


class Made(NamedTuple):
    """A draft, and the steps and rows that it took."""

    draft: list[int]
    steps: int
    rows: int


class Conversation:
    """An answer whose tokens are ``text``, as ``SplitAnswer`` runs it: drafts, verdicts and what the memories hold after them."""

    def __init__(
        self,
        text: list[int],
        seed: int,
        *,
        window: int | WindowPolicy = 3,
        parallel: Parallel = 3,
        branches: Branches = "ranked",
        lookup: bool = True,
        round_trip: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.text, self.rng = text, Random(seed)
        self.tokens = list(PROMPT)
        whole = [*PROMPT, *text]
        states = [state_of(whole[:end]) for end in range(len(whole))]
        following = {(float(state[0]), float(state[1])): whole[end] for end, state in enumerate(states)}
        self.input, self.layer = ScriptedInput(), ScriptedLayer(following, self.rng)
        self.options = DraftOptions(Path("x"), window=window, parallel=parallel, branches=branches, lookup=lookup)
        self.lengths = DraftLengths(self.options.policy, lambda _rows: 0.0)
        parts = cast("tuple[InputPart, HeadPart]", (self.input, ScriptedHead()))
        self.drafts = AnswerDrafts(
            cast(DraftPart, self.layer),
            parts,
            sequence=0,
            lengths=self.lengths,
            parallel=ParallelDrafting(parallel, round_trip),
            options=self.options,
        )
        prompt = self.input.run(ScriptedHead().embed(PROMPT), 0)
        self.rows = list(prompt)
        self.drafts.record(prompt, deep_of(PROMPT)[-1:], 0)

    @property
    def made(self) -> list[int]:
        return self.tokens[len(PROMPT) :]

    def round(self, steps: Callable[[], int] = lambda: 60) -> Made:
        """Run one round, with so many steps while the verdict is out."""
        place, length = len(self.made), len(self.tokens)
        self.tokens.append(self.text[place])
        before = self.layer.steps, self.input.rows
        draft, rows = self.drafts.make(self.tokens, len(self.text) - place - 1)
        made = Made(draft, self.layer.steps - before[0], self.input.rows - before[1])
        assert len(draft) <= len(self.text) - place - 1
        whole = [*self.tokens, *draft]
        assert len(rows) == 1 + len(draft)
        for end, row in enumerate(rows, length + 1):
            assert (row == state_of(whole[:end])).all(), "the input layers' rows are those of the tokens before them"
        for _ in range(steps()):
            self.drafts.predraft()
        self.drafts.record_arrival()
        accepted = 0
        while accepted < len(draft) and draft[accepted] == self.text[place + 1 + accepted]:
            accepted += 1
        self.tokens += draft[:accepted]
        verified = rows[: 1 + accepted]
        self.rows += verified
        self.drafts.record(np.stack(verified), deep_of(self.tokens)[length:], length)
        return made

    def check_memory(self) -> None:
        """After the verdict is read, the draft layer holds the verified tokens with the server's states."""
        self.drafts._tree._read_verified()  # else only the next guess reads them
        held, deep = self.layer.held[0], self.layer.deep[0]
        assert [row.tolist() for row in held] == [row.tolist() for row in self.rows]
        for place in range(len(PROMPT), len(held)):
            assert (deep[place] == deep_of(self.tokens)[place - 1]).all()


def deep_of(tokens: list[int]) -> Any:
    """The server's states: for each token what came before it, and a mark that no guess has."""
    return np.stack([state_of(tokens[: end + 1]) + 0.5 for end in range(len(tokens))])


texts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=24)
windows = st.sampled_from([1, 3, 5, Threshold(0.3, 6)])


@given(texts, st.integers(0, 2**32), windows, st.sampled_from(["auto", *range(9)]), st.sampled_from(["ranked", "last"]))
def test_whatever_is_drafted_rows_and_memories_are_those_of_the_text(
    text: list[int], seed: int, window: int | WindowPolicy, parallel: Parallel, branches: Branches
) -> None:
    trips = Random(seed)
    talk = Conversation(text, seed, window=window, parallel=parallel, branches=branches, round_trip=lambda: trips.choice([0.0, 1.0]))
    while len(talk.made) < len(text):
        talk.round(lambda: talk.rng.choice([0, 1, 2, 5, 40]))
        talk.check_memory()
    assert talk.made == text
    counts = talk.drafts.counts
    assert counts.sent <= counts.hits
    assert counts.accepted <= counts.sent_tokens
    if not parallel:
        assert counts.hits == counts.begun == 0
    talk.drafts.close()
    assert not talk.layer.held[0]


REPEATED = [2, 5, 0, 1, 4, 3, 0, 6, 5, 1] * 12


@pytest.mark.long
@pytest.mark.parametrize("parallel", [0, 3])
def test_text_that_repeats_is_drafted_without_the_draft_layer(parallel: int) -> None:
    steps = {}
    for lookup in (False, True):
        talk = Conversation(REPEATED, 3, window=8, parallel=parallel, lookup=lookup)
        made = []
        while len(talk.made) < len(REPEATED):
            made.append(talk.round(lambda: 0))
            talk.check_memory()
        assert talk.made == REPEATED
        steps[lookup] = sum(each.steps for each in made)
        lookups = talk.drafts.lookups
        assert (lookups.drafted > 0) == lookup
        assert lookups.accepted <= lookups.drafted
    assert lookups.accepted > 80
    assert steps[True] < steps[False] / 3


def test_lookups_of_the_last_round_count_though_nothing_is_read_after_it() -> None:
    talk = Conversation(REPEATED, 3, window=8, parallel=0)
    while not talk.drafts.lookups.accepted:
        talk.round()
    accepted, place = talk.drafts.lookups.accepted, len(talk.made)
    talk.tokens.append(REPEATED[place])
    draft, _ = talk.drafts.make(talk.tokens, 4)
    talk.drafts.record_accepted(len(draft))
    assert talk.drafts.lookups.accepted == accepted + 4


LONG = [Random(7).randrange(VOCABULARY) for _ in range(200)]


@pytest.mark.parametrize("branches", ["ranked", "last"])
def test_a_verdict_that_was_foreseen_saves_rows(branches: Branches) -> None:
    rows = {}
    for parallel in (0, 6):
        talk = Conversation(LONG, 1, window=2, parallel=parallel, branches=branches)
        rounds = []
        while len(talk.made) < len(LONG):
            rounds.append(talk.round())
        rows[parallel] = sum(made.rows for made in rounds) / len(rounds)
        assert (talk.drafts.counts.hits > 30) is (talk.drafts.counts.begun > 30) is (parallel > 0)
    assert rows[6] < 0.8 * rows[0]


@pytest.mark.parametrize(("round_trip", "has_branches"), [(0.0, False), (10.0, True)])
def test_by_default_branches_are_drafted_while_the_link_is_idle(round_trip: float, *, has_branches: bool) -> None:
    talk = Conversation(LONG, 1, window=2, parallel="auto", round_trip=lambda: round_trip)
    while len(talk.made) < len(LONG):
        talk.round()
    assert talk.made == LONG
    assert (talk.drafts.counts.hits > 30) is (talk.drafts.counts.begun > 30) is has_branches
    assert bool(talk.drafts.counts.begun) is has_branches


def test_branches_that_match_no_verdict_are_drafted_now_and_then_only() -> None:
    talk = Conversation(LONG, 1, window=2, parallel="auto", lookup=False, round_trip=lambda: 10.0)
    rounds = 0
    while len(talk.made) < len(LONG):
        talk.round(lambda: 2)  # enough to begin a branch, and not to draft it
        rounds += 1
    counts = talk.drafts.counts
    assert counts.hits < 0.1 * rounds
    assert 16 <= counts.begun < 0.5 * rounds


def test_the_papers_branches_are_sent_without_computing_anything() -> None:
    talk = Conversation(LONG, 5, parallel=6, branches="last")
    free = 0
    while len(talk.made) < len(LONG):
        sent = talk.drafts.counts.sent
        made = talk.round()
        if talk.drafts.counts.sent > sent:
            assert made.draft
            assert (made.steps, made.rows) == (0, 0)
            free += 1
    assert free > 20


def test_after_a_branch_was_sent_the_next_branches_begin_at_guesses_from_verified_states() -> None:
    talk = Conversation(LONG, 5, parallel=6, branches="last")
    checked = 0
    states: list[Any] = []

    def steps() -> int:
        for _ in range(60):
            talk.drafts.predraft()
        states[:] = talk.layer.deep[0]
        return 0

    while len(talk.made) < len(LONG) - 4:
        position, sent = len(talk.tokens), talk.drafts.counts.sent
        draft = talk.round(steps).draft
        if talk.drafts.counts.sent > sent:
            assert (states[position] == deep_of(talk.tokens)[position - 1]).all()
            assert -states[position + 1][0] % 1 == 1 / DEPTHS, "a guess from a verified state, not from those of the branch"
            checked += bool(draft)
    assert checked > 20


def test_ranked_branches_are_sent_only_if_their_time_is_worth_the_tokens_that_they_lose() -> None:
    for step, is_sent in ((1e-6, False), (1.0, True)):
        lengths = DraftLengths(Threshold(0.0, 4), lambda _rows: 0.0)
        for _ in range(50):
            lengths.record_step(1.0)
            lengths.record_step(step, has_row=True)
            lengths.record_round(2, 0.05 + step)
            lengths.record_verdict([0.5] * 4, 2)
            lengths.record_verdict([0.5] * 4, 1, is_branch=True)
        sent = [lengths.should_send_branch(4) for _ in range(32)]
        assert sent.count(True) == (32 if is_sent else 2), "one in sixteen is sent to learn how many are accepted"


def test_nothing_is_drafted_after_the_states_have_come_or_when_they_are_expected() -> None:
    talk = Conversation([1, 2, 3, 4, 5, 0, 1, 2], 1)
    found = []
    talk.drafts.make([*PROMPT, 1], 5)
    found.append(talk.drafts.can_predraft)  # no wait was measured
    talk.drafts.record_arrival()
    found.append(talk.drafts.can_predraft)
    steps = talk.layer.steps
    talk.drafts.predraft()
    assert talk.layer.steps == steps
    for _ in range(200):
        talk.lengths.record_wait(0.0)
    talk.drafts.make([*PROMPT, 1], 5)
    found.append(talk.drafts.can_predraft)  # the verdict is expected before a step would end (equation 6)
    assert found == [True, False, False]


def test_what_a_round_keeps_is_bounded() -> None:
    talk = Conversation([Random(2).randrange(VOCABULARY) for _ in range(60)], 3, window=16, parallel=8)
    while len(talk.made) < 60:
        talk.round(lambda: 5000)
        assert len(talk.drafts._tree._rows) <= 16 * 17
        assert len(talk.drafts._tree._guesses) <= 16 * 17


@pytest.mark.parametrize("wrong", [{"parallel": -1}, {"parallel": 9}, {"parallel": "always"}, {"branches": "all"}])
def test_branches_that_can_not_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"drafts: (parallel|branches): expected"):
        DraftOptions(Path("x"), **wrong)
