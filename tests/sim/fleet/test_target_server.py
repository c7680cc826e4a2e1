import pytest
import simpy
from msgspec.structs import replace

from streamco.core.verifier.events import AcceptSession, DraftReceived, RefuseSession, SendVerdict, SessionOpened
from streamco.policies.serving.batching import Alternating
from streamco.sim.fleet.recorded_answer import RecordedAnswer, prompt_ids
from streamco.sim.fleet.target_server import CoLocatedDraft, PassLimits, PlainStream, SessionAnswer, TargetServer
from tests.sim.fleets import OPEN, requests

STEP = 0.05


class Passes:
    """Notes what every pass held."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int, int, int]] = []

    def __call__(self, rows: int, tokens: int, context: int, sequences: int) -> float:
        if rows or tokens > 1:  # the scheduler asks too, for what it foresees
            self.held.append((rows, tokens, context, sequences))
        return STEP


def answers(count: int, tokens: int = 5) -> list[RecordedAnswer]:
    return [RecordedAnswer(request) for request in requests(count, tokens=tokens)]


def test_streams_share_a_pass_and_their_prompts_are_read_one_behind_the_other() -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, OPEN)
    emitted: list[tuple[float, int]] = []
    for answer in answers(2):
        server.stream(PlainStream(answer, 0, lambda position: emitted.append((round(env.now / STEP), position))))
    env.run()
    assert emitted == [(1, 0), (2, 1), (2, 0), (3, 2), (3, 1), (4, 3), (4, 2), (5, 4), (5, 3), (6, 4)]
    assert server.passes == 6
    assert server.busy == pytest.approx(6 * STEP)
    assert (server.made, server.read, server.verified) == (10, 60, 0)


def test_a_verification_takes_part_in_the_pass_of_streams_and_finds_what_one_of_them_had_read() -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, OPEN)
    (answer,) = answers(1, tokens=8)
    server.stream(PlainStream(answer, 0, lambda _: None))
    env.run(until=2.5 * STEP)
    replies: list[SessionAnswer] = []
    length = answer.request.prompt_tokens
    server.open(SessionOpened("s", "d", (*prompt_ids(length), answer.right(0))), answer, replies.append)
    server.receive(DraftReceived(session="s", round=1, base=length + 1, draft=(answer.right(1), answer.right(2), 99)))
    env.run()
    assert isinstance(replies[0], AcceptSession)
    verdict = replies[1]
    assert isinstance(verdict, SendVerdict)
    assert (verdict.verdict.accepted, verdict.verdict.token) == (2, answer.right(3))
    assert server.read == length + 4  # the prompt once; the row before the draft, and the draft
    assert server.verified == 3


@pytest.mark.parametrize("first_is_a_session", [False, True])
def test_what_all_prompts_begin_with_is_read_once(first_is_a_session: bool) -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, OPEN, Alternating(batch_tokens=128))
    first, second, third = (RecordedAnswer(replace(request, prompt_tokens=300, common_tokens=200)) for request in requests(3, tokens=5))

    def open_session(answer: RecordedAnswer) -> None:
        server.open(SessionOpened(f"s{answer.request.number}", "d", prompt_ids(300)), answer, lambda _: None)

    if first_is_a_session:
        open_session(first)
    else:
        server.stream(PlainStream(first, 0, lambda _: None))
    env.run()
    whole = server.read
    assert whole == (299 if first_is_a_session else 300)  # a session's last token is read with its first draft
    assert server.passes >= 3  # what is common ends within a piece
    server.stream(PlainStream(second, 0, lambda _: None))
    env.run()
    assert server.read == whole + 100
    server.forget(first.request.number)
    open_session(third)
    env.run()
    assert server.read == whole + 100 + 99


def test_a_stream_that_is_stopped_writes_no_more_and_another_goes_on() -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, OPEN)
    emitted: list[int] = []
    first, second = answers(2)
    stopped = PlainStream(first, 0, emitted.append)
    server.stream(stopped)
    server.stream(PlainStream(second, 0, lambda _: None))
    env.run(until=2.5 * STEP)
    server.stop(stopped)
    env.run()
    assert emitted == [0, 1]
    assert server.made == 2 + 5


def test_padding_counts_every_request_as_long_as_the_longest() -> None:
    plain, padded = Passes(), Passes()
    for passes, is_padded in ((plain, False), (padded, True)):
        env = simpy.Environment()
        server = TargetServer(env, passes, OPEN, is_padded=is_padded)
        for number, (answer, length) in enumerate(zip(answers(3), (10, 30, 20), strict=True)):
            server.open(SessionOpened(f"s{number}", f"d{number}", prompt_ids(length)), answer, lambda _: None)
        env.run(until=10.0)
    assert max(tokens for _, tokens, _, sequences in plain.held if sequences == 2) == 29 + 19
    assert max(tokens for _, tokens, _, sequences in padded.held if sequences == 2) == 2 * 29


def test_prompts_are_cut_into_passes_smaller_ones_beside_streams_that_write() -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, OPEN, limits=PassLimits(max_prompt=20, max_prompt_beside=10))
    emitted: list[tuple[int, int]] = []
    for number, answer in enumerate(answers(2, tokens=9)):
        server.stream(PlainStream(answer, 0, lambda position, number=number: emitted.append((number, round(env.now / STEP)))))  # type: ignore[misc]
    env.run()
    assert [when for number, when in emitted if number == 0] == [2, *range(3, 11)]  # 30 tokens: 20 and 10
    assert [when for number, when in emitted if number == 1] == [5, *range(6, 14)]  # three times 10
    assert server.read == 60


def test_where_streams_write_first_their_tokens_are_told_before_what_is_read_behind_them() -> None:
    env = simpy.Environment()
    server = TargetServer(
        env, lambda rows, tokens, context, sequences: (STEP if rows else 0.0) + tokens / 1000, OPEN, limits=PassLimits(writes_first=True)
    )
    emitted: list[tuple[str, float]] = []
    first, second = answers(2)
    server.stream(PlainStream(first, 0, lambda _: emitted.append(("first", round(env.now, 4)))))
    env.run(until=0.1)  # its prompt of 30 tokens is read, and its second token comes at 0.08
    server.stream(PlainStream(second, 0, lambda _: emitted.append(("second", round(env.now, 4)))))
    env.run()
    assert [when for name, when in emitted if name == "first"] == [0.03, 0.08, 0.13, 0.18, 0.26]
    assert [when for name, when in emitted if name == "second"] == [0.21, 0.26, 0.31, 0.36, 0.41]


def test_a_streams_prompt_is_read_between_batches_that_never_end() -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, OPEN, limits=PassLimits(max_prompt_beside=10))
    drafted, streamed = answers(2, tokens=60)
    length, rounds = drafted.request.prompt_tokens, iter(range(1, 100))
    verdicts: list[float] = []

    def send_draft(reply: SessionAnswer | None = None) -> None:
        if isinstance(reply, SendVerdict):
            verdicts.append(env.now)
        number = next(rounds)
        position = 2 * number
        server.receive(DraftReceived(session="s", round=number, base=length + position - 1, draft=(drafted.right(position - 1),)))

    server.open(SessionOpened("s", "d", (*prompt_ids(length), drafted.right(0))), drafted, send_draft)
    env.run(until=10 * STEP)
    emitted: list[float] = []
    begun = env.now
    server.stream(PlainStream(streamed, 0, lambda _: emitted.append(env.now)))
    env.run(until=begun + 12 * STEP)
    assert emitted[0] - begun < 8 * STEP, "three pieces of its prompt, and a batch before each"
    assert len(verdicts) > 5


def test_prompts_that_take_turns_are_read_a_piece_of_each() -> None:
    def ends(*, takes_turns: bool) -> list[float]:
        env = simpy.Environment()
        limits = PassLimits(max_prompt=10, max_prompt_beside=10, takes_turns=takes_turns)
        server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, OPEN, limits=limits)
        firsts: dict[int, float] = {}
        for number, answer in enumerate(answers(2)):
            server.stream(PlainStream(answer, 0, lambda _, number=number: firsts.setdefault(number, env.now)))  # type: ignore[misc,arg-type]
        env.run()
        return [round(firsts[number] / STEP) for number in range(2)]

    assert ends(takes_turns=False) == [3, 6]  # 30 tokens each
    assert ends(takes_turns=True) == [5, 6]


def test_a_batch_whose_parts_are_long_takes_several_passes() -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP + tokens / 10_000, OPEN, limits=PassLimits(max_part=32))
    for number, (answer, length) in enumerate(zip(answers(2), (81, 41), strict=True)):  # the last id is read with the first draft
        server.open(SessionOpened(f"s{number}", f"d{number}", prompt_ids(length)), answer, lambda _: None)
    env.run(until=10.0)
    assert server.passes == 3 + 2
    assert server.busy == pytest.approx(5 * STEP + 120 / 10_000)
    assert server.read == 120


def test_a_session_that_is_closed_while_it_is_judged_leaves_nothing() -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, OPEN)
    (answer,) = answers(1)
    replies: list[SessionAnswer] = []
    server.open(SessionOpened("s", "d", prompt_ids(30)), answer, replies.append)
    server.receive(DraftReceived(session="s", round=1, base=30, draft=(1,)))
    env.run(until=1.5 * STEP)
    server.close("s")
    env.run(until=10.0)
    assert server.sessions == 0
    assert [type(each) for each in replies] == [AcceptSession]


def test_who_is_refused_is_counted() -> None:
    env = simpy.Environment()
    server = TargetServer(env, lambda rows, tokens, context, sequences: STEP, replace(OPEN, sessions_per_device=1))
    replies: list[SessionAnswer] = []
    for number, answer in enumerate(answers(2)):
        server.open(SessionOpened(f"s{number}", "d", prompt_ids(30)), answer, replies.append)
    env.run(until=1.0)
    assert [type(each) for each in replies] == [AcceptSession, RefuseSession]
    assert server.refused == 1


def test_a_round_with_a_draft_model_takes_its_steps_and_writes_what_is_accepted_and_one_more() -> None:
    env = simpy.Environment()
    drafting = CoLocatedDraft(lambda rows, tokens, context, sequences: 0.001 * rows + 0.0001 * tokens, 3)
    passes = Passes()
    server = TargetServer(env, passes, OPEN, limits=PassLimits(drafting=drafting))
    (request,) = requests(1, tokens=9)
    answer = RecordedAnswer(replace(request, accepted=bytes([0, 1, 1, 0, 1, 1, 1, 1, 1])))
    emitted: list[tuple[float, int]] = []
    server.stream(PlainStream(answer, 0, lambda position: emitted.append((round(env.now, 6), position))))
    env.run()
    first = STEP + 0.0001 * request.prompt_tokens
    times = [first + index * (STEP + 3 * 0.001) for index in range(3)]
    ends = [*times, times[2] + STEP + 0.003]
    rounds = [(0,), (1, 2, 3), (4, 5, 6, 7), (8,)]
    assert emitted == [(round(end, 6), position) for end, positions in zip(ends, rounds, strict=True) for position in positions]
    assert (server.made, server.verified) == (9, 9)
    assert passes.held[-1][:2] == (0, 4), "a row before the draft, and three of it"
