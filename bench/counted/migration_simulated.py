"""Hand-overs in virtual time: the real session machine among simulated models that break anywhere (see ``bench.counted.migration``)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import simpy

from bench.counted.simulated_writer import SimulatedWriter, Spelling
from streamco.core.race.attempt import AttemptPlan
from streamco.core.race.machine import RaceMachine, RacePlan
from streamco.core.race.migration import MigrationPlan
from streamco.policies.migration import Terms
from streamco.profiles import RemainingLength
from streamco.sim.race.session import SimulatedRace

__all__ = ["Tally", "World", "simulate"]

SEED = 41
_SIGNS = (
    *"abcdefghijklmnopqrstuvwxyz0123456789.,:;()=日本語한é",
    *" " * 12,
    "  ",
    "\n",
    "\n    ",
    "\t",
    "e\u0301",
    "\u0627",
    "🦎",
    "👩\u200d🚀",
)


@dataclass(slots=True)
class Tally:
    """What many answers came to."""

    answers: int = 0
    hand_overs: int = 0
    by_ids: int = 0
    planned: int = 0
    paced: int = 0
    most: int = 0  # in one answer
    unfinished: int = 0  # answers that came to an end with nobody left who could go on
    wrong: list[str] = field(default_factory=list)

    def add(self, world: World) -> None:
        """Count an answer that has been run."""
        by_ids, by_text = (sum(getattr(writer, how) for writer in world.writers) for how in ("by_ids", "by_text"))
        self.answers += 1
        self.hand_overs += by_ids + by_text
        self.by_ids += by_ids
        self.planned += sum(each.is_planned for each in world.machine.hand_overs)
        self.paced += (by_ids + by_text) * (world.plan.pace is not None)
        self.most = max(self.most, by_ids + by_text)
        self.unfinished += world.machine.error is not None
        if (difference := world.difference()) is not None:
            self.wrong.append(f"seed {world.seed}: {difference}")


class World:
    """Two to six models that know one answer, and a session that gets it from them.

    All but the last break at random. In three of four worlds they have one vocabulary and tell ids; in the others two vocabularies are
    mixed, and some tell text alone. In every other one answers also move to cheaper models, the last one too, which ends some of them
    early: nobody takes over twice.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = self.rng = random.Random(f"{SEED}/{seed}")
        self.text = "".join(rng.choices(_SIGNS, k=rng.randint(8, 120)))
        self.is_one_vocabulary = rng.random() < 0.75
        spellings = [Spelling.draw(self.text, vocabulary, rng) for vocabulary in ("one", "other")]
        self.spelling = spellings[0]
        self.is_limited = self.is_one_vocabulary and rng.random() < 0.3
        names = [f"writer{number}" for number in range(rng.randint(2, 6))]
        self.writers = [self._writer(name, self._spelling_of(spellings), breaks=name != names[-1]) for name in names]
        waits = [0.0, *(rng.choice([None, None, 0.0, rng.uniform(0, 1)]) for _ in names[2:]), None]
        self.plan = RacePlan(
            attempts=tuple(
                AttemptPlan(writer.name, wait, continues=True, vocabulary=writer.spelling.vocabulary if writer.sends_ids else None)
                for writer, wait in zip(self.writers, waits, strict=True)
            ),
            pace=rng.choice([None, rng.uniform(5, 200)]),
            explore=rng.random() < 0.2,
            on_failure="migrate",
            max_tokens=len(self.spelling.ids) if self.is_limited else None,
            migration=self._moves() if rng.random() < 0.5 else None,
        )

    def _moves(self) -> MigrationPlan:
        """Prices and times at random: what moving saves is not asked here, only that it loses nothing."""
        rng = self.rng
        terms = {
            writer.name: Terms(
                prompt=rng.choice([0.0, 1e-7]),
                completion=rng.uniform(0, 1e-5),
                setup=rng.choice([None, rng.uniform(0.01, 0.5)]),
                per_token=rng.choice([0.0, 0.001]),
                pre_copy=rng.choice(["append", "warm", "none"]),
            )
            for writer in self.writers
        }
        return MigrationPlan(
            terms=terms,
            lengths=RemainingLength((50, 400), (0.5, 0.1)),
            prompt_tokens=rng.randint(1, 100),
            reader_rate=rng.uniform(1, 50),
            capacity=rng.choice([8, 500]),
            rule=rng.choice(["pre-copy", "full-buffer"]),
            max_migrations=rng.randint(1, 5),
        )

    def _spelling_of(self, spellings: Sequence[Spelling]) -> Spelling:
        return self.spelling if self.is_one_vocabulary else self.rng.choice(spellings)

    def _writer(self, name: str, spelling: Spelling, *, breaks: bool) -> SimulatedWriter:
        rng = self.rng
        chunks = len(spelling.ids)
        return SimulatedWriter(
            name,
            spelling,
            rng,
            first=rng.uniform(0.01, 0.5),
            gap=rng.choice([0.0, rng.uniform(0.001, 0.1)]),
            burst=rng.choice([1, 3, 12]),
            breaks=[rng.randint(0, max(1, chunks // rng.randint(1, 4))) for _ in range(2 * breaks)],
            finish_reason="length" if self.is_limited else "stop",
            sends_ids=self.is_one_vocabulary or rng.random() < 0.6,
            sends_ids_early=rng.random() < 0.3,
            cancel_takes=rng.choice([0.0, rng.uniform(0.001, 0.3)]),
        )

    def run(self) -> World:
        """The whole answer, and all work behind it."""
        env = simpy.Environment()
        self.machine = RaceMachine(self.plan)
        self.session = SimulatedRace(env, self.machine, {writer.name: writer for writer in self.writers})
        self.session.start()
        env.run()
        return self

    def difference(self) -> str | None:
        """How what the reader got is not the uninterrupted answer; None: it is."""
        if not self.session.done.triggered or not self.machine.is_over:
            return "expected the session to come to its end, got one that waits"
        if self.machine.error is not None:
            return self._difference_of_a_part()
        text, ids = self._told()
        if text != self.text:
            return f"expected {self.text!r}, got {text!r}"
        if self.is_one_vocabulary and ids != self.spelling.ids:
            return f"expected ids {self.spelling.ids}, got {ids}"
        expected, reason = "length" if self.is_limited else "stop", self.machine.finish_reason
        return None if reason == expected else f"expected the finish reason {expected}, got {reason}"

    def _difference_of_a_part(self) -> str | None:
        if self.plan.migration is None:
            return f"expected the answer to come to its end, got {self.machine.error}"
        text, ids = self._told()
        if not self.text.startswith(text) or (self.is_one_vocabulary and self.spelling.ids[: len(ids)] != ids):
            return f"expected a part of {self.text!r}, got {text!r}"
        return None

    def _told(self) -> tuple[str, tuple[int, ...]]:
        """Text and ids the reader got; ids that came ahead of a text that then another model made are not the answer's."""
        text = ""
        ids: list[int] = []
        ahead: list[int] = []
        for choice in (choice for _, delivery in self.session.deliveries for chunk in delivery.chunks for choice in chunk.choices):
            if choice.delta.role:  # each model's first word
                ahead = []
            ahead += choice.token_ids or ()
            if choice.delta.content:
                text += choice.delta.content
                ids += ahead
                ahead = []
        return text, tuple(ids)


def simulate(hand_overs: int, *, first_seed: int = 0) -> Tally:
    """Worlds until so many hand-overs have been made."""
    tally = Tally()
    while tally.hand_overs < hand_overs:
        tally.add(World(first_seed + tally.answers).run())
    return tally
