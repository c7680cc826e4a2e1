"""The device's side of an answer: the draft behind what is settled, and the branches beside it.

It keeps what the device's own sequence holds, so that a draft begins with as little as possible to read again, and the versions of all that
is drafted: news of what was dropped meets nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamco.core.report import SpeculationReport
from streamco.core.speculation.answer import PeerPrefix
from streamco.core.speculation.draft import DraftSequence
from streamco.core.speculation.estimates import SpeculationEstimates
from streamco.core.speculation.events import AdoptBranch, DraftBranch, DraftTokens, DropDrafts, SpeculationCommand, TokensDrafted
from streamco.errors import StreamcoError
from streamco.policies.rejection import Branch

__all__ = ["DraftState"]

_CORRECTION = 2  # ids that a draft may have to read first and still say how fast the device drafts


class DraftState:
    """What the device is at.

    Args:
        pair: is told how long drafts take.
        report: counts.
        say: takes commands.
        number: gives the next version.

    Attributes:
        trunk: the draft behind the settled tokens; None: none.
        branches: by version, those that bet on the verdict that is out.
        failure: why the device is out for the rest of the answer; None: it is not.
        is_full: there is no room for another token on the device.
    """

    def __init__(
        self, pair: SpeculationEstimates, report: SpeculationReport, say: Callable[[SpeculationCommand], None], number: Callable[[], int]
    ) -> None:
        self.trunk: DraftSequence | None = None
        self.branches: dict[int, DraftSequence] = {}
        self.failure: StreamcoError | None = None
        self.is_full = False
        self._pair = pair
        self._report = report
        self._say = say
        self._number = number
        self._mirror = PeerPrefix()
        self._has_begun = False  # it has written a token of this answer: until then it may be reading the prompt
        self._waiting: list[tuple[Branch, int]] = []  # branches to begin when those before them are done, and how far each goes
        self._behind, self._width = 0, 1  # settled tokens that branches count from; branches side by side
        self._side_by_side = 0  # branches that began together
        self._depth, self._depth_at = 0, 0.0  # tokens of the furthest of them, and when it had so many

    @property
    def is_out(self) -> bool:
        """Nothing more can be drafted in this answer."""
        return self.is_full or self.failure is not None

    def begin(self, settled: Sequence[int], count: int, *, now: float) -> None:
        """Draft behind the settled tokens, whatever it is at."""
        self.drop()
        length = self._mirror.meet(settled)
        ids = tuple(settled[length:])
        self._mirror.write(length, ids)
        self.trunk = DraftSequence(self._number(), count, now, is_timed=self._has_begun and len(ids) <= _CORRECTION)
        self._say(DraftTokens(self.trunk.version, length, ids, count))

    def extend(self, line: DraftSequence, count: int, *, now: float) -> None:
        """Draft on behind the trunk's tokens."""
        line.go_on(self._number(), count, now=now)
        self._say(DraftTokens(line.version, len(self._mirror.ids), (), count))

    def bet_on(self, judged: int, count: int, *, now: float) -> DraftSequence | None:
        """Return a branch of ``count`` tokens after the trunk, for a trunk accepted whole; None: it can't be drafted."""
        line, self.trunk = self.trunk, None
        if line is None or line.is_out_of_room:
            return None
        line.bet_on(judged, count)
        self.branches[line.version] = line
        self._go_on(line, now)
        return line

    def _go_on(self, line: DraftSequence, now: float) -> None:
        """Draft on along a bet on the device's own sequence, if that is done and has not what it is to have."""
        more = line.wanted - len(line.tokens)
        if line.is_finished and more > 0 and not line.is_out_of_room:
            del self.branches[line.version]
            self.extend(line, more, now=now)
            self.branches[line.version] = line

    def branch(
        self, settled: int, guesses: Sequence[Branch], count: Callable[[Branch], int], *, width: int, lead: int = 0, now: float
    ) -> None:
        """Draft beside the trunk, which is being judged behind so many settled tokens; so many side by side, then the next ones.

        ``count`` says how far, 0: not at all. The first ``lead`` ones are drafted before the others.
        """
        self._behind, self._width = settled, width
        self._waiting = [(guess, tokens) for guess in guesses if (tokens := count(guess)) > 0]
        if all(line.is_finished for line in self.branches.values()):
            self._begin_branches(now, lead or width)

    def _begin_branches(self, now: float, width: int) -> None:
        beginning, self._waiting = self._waiting[:width], self._waiting[width:]
        for guess, tokens in beginning:
            asked = tokens + (guess.token is None)
            line = DraftSequence(self._number(), asked, now, guess, is_timed=True, is_branch=True)
            self.branches[line.version] = line
            ids = () if guess.token is None else (guess.token,)
            self._say(DraftBranch(line.version, self._behind + guess.position, ids, asked))
        self._side_by_side = len(beginning)
        self._depth, self._depth_at = 0, now

    def take(self, event: TokensDrafted, *, now: float) -> DraftSequence | None:
        """Note tokens; gives the draft they belong to, None where that is over."""
        self._report.drafted += len(event.tokens)
        self._has_begun = self._has_begun or bool(event.tokens)
        trunk = self.trunk if self.trunk is not None and self.trunk.version == event.version else None
        line = trunk or self.branches.get(event.version)
        if line is None:
            return None
        if line is not trunk:
            self._report.pre_drafted += len(event.tokens)
        line.take(event.tokens, event.importance, now=now, is_finished=event.is_finished)
        if line is trunk or line.is_own:
            held = len(self._mirror.ids)
            self._mirror.write(held, [token.id for token in event.tokens])
        if line.is_own and line.is_finished:
            self._go_on(line, now)
        if line is trunk:
            if line.is_finished and (pace := line.pace(now=now)) is not None:
                self._pair.note_draft(1, *pace)
        elif not line.is_own and line.made > self._depth:  # the first of a batch says it for all: few branches are ever finished
            self._pair.note_draft(self._side_by_side, line.made - self._depth, now - self._depth_at)
            self._depth, self._depth_at = line.made, now
        if self._waiting and line is not trunk and all(branch.is_finished for branch in self.branches.values()):
            self._begin_branches(now, self._width)
        return line

    def rest(self, *, now: float) -> None:
        """The trunk is judged as it is: nothing more is drafted on it."""
        if self.trunk is not None and not self.trunk.is_finished:
            self._say(DropDrafts((self.trunk.version,)))
            if (pace := self.trunk.pace(now=now)) is not None:
                self._pair.note_draft(1, *pace)
        self.trunk = None

    def held(self, settled: Sequence[int]) -> int:
        """Return how many of the settled tokens the device's own sequence has, or is being given."""
        return self._mirror.meet(settled)

    def find(self, accepted: int, token: int | None) -> DraftSequence | None:
        """Return the branch that foresaw this verdict; None: none did."""
        return next((line for line in self.branches.values() if line.fits(accepted, token)), None)

    def adopt(self, line: DraftSequence, settled: Sequence[int], token: int | None) -> None:
        """A branch won its bet: it is the trunk, behind the settled tokens, from now on, and the others are dropped."""
        self._report.hits += token is not None
        self._report.adopted += len(line.tokens)
        is_own = line.is_own
        line.win(token)
        del self.branches[line.version]
        if not is_own:
            self._say(AdoptBranch(line.version))
            self.branches = {version: branch for version, branch in self.branches.items() if not branch.is_own}  # it is closed with that
        self.drop()
        self.trunk = line
        same = self._mirror.meet(settled)
        self._mirror.write(same, [*settled[same:], *line.ids])

    def drop(self) -> None:
        """End all drafts; what the device's own sequence holds stays."""
        versions = [version for version, line in self.branches.items() if not (line.is_own and line.is_finished)]
        if self.trunk is not None and not self.trunk.is_finished:
            versions.append(self.trunk.version)
        if versions:
            self._say(DropDrafts(tuple(versions)))
        self.branches, self._waiting = {}, []
        self.trunk = None
