"""Sessions and the room they have in the cache."""

from __future__ import annotations

from streamco.core.verifier.events import DraftReceived
from streamco.core.verifier.sessions import HeldSession, SessionTable


def session(name: str = "a", length: int = 10, *, now: float = 0.0, device: str = "device") -> HeldSession:
    return HeldSession(name, device, tuple(range(length)), now=now)


def residency(*lengths: int, tokens: int = 100, places: int = 4) -> tuple[SessionTable, list[HeldSession]]:
    held = SessionTable(tokens=tokens, places=places, idle_after=5.0, forget_after=60.0)
    sessions = [session(f"s{number}", length, now=float(number)) for number, length in enumerate(lengths)]
    for each in sessions:
        assert held.reserve(each, each.need, now=each.touched) == []
        held.add(each)
        each.cached = each.prompt_end
    return held, sessions


# One session


def test_a_prompt_is_read_up_to_its_last_token_which_the_first_draft_needs() -> None:
    one = session(length=10)
    one.reserved_tokens = 10
    work = one.work()
    assert work is not None
    assert (work.kind, work.tokens) == ("prefill", 9)
    assert one.read(9) == tuple(range(9))
    assert one.work() is None


def test_a_draft_is_read_behind_what_the_device_has_given_and_judged_from_the_last_settled_token_on() -> None:
    one = session(length=10)
    one.reserved_tokens, one.cached = 20, 9
    one.rewrite(10, (10, 11))
    one.pending = DraftReceived(session="a", round=0, base=10, given=(10, 11), draft=(12, 13, 14))
    work = one.work()
    assert work is not None
    assert (work.kind, work.tokens, work.verify_rows) == ("verify", 6, 4)
    assert one.read(2) == (9, 10)
    assert one.read(4) == (11, 12, 13, 14)


def test_a_text_that_is_cut_takes_the_cache_with_it_but_for_what_is_before_its_last_token() -> None:
    one = session(length=10)
    one.cached = 9
    assert not one.rewrite(10, ())
    assert one.rewrite(5, ())
    assert (one.cached, one.text) == (4, [0, 1, 2, 3, 4])
    assert one.rewrite(2, (7, 8, 9))
    assert (one.cached, one.text) == (2, [0, 1, 7, 8, 9])


def test_what_a_batch_reads_of_a_text_that_is_cut_meanwhile_does_not_stay() -> None:
    one = session(length=10)
    one.reserved_tokens = 10
    one.read(9)
    one.is_running = True
    assert not one.rewrite(4, (70, 71))
    assert one.cached == 9
    assert one.keep(one.keeps)
    assert one.cached == 4


# Room


def test_room_is_made_by_taking_the_place_of_who_was_silent_longest() -> None:
    held, (first, second, _) = residency(40, 40, 20)
    newcomer = session("new", 40, now=8.0)
    assert held.reserve(newcomer, 40, now=8.0) == [first]
    assert (first.reserved_tokens, first.cached, first.prompt_end) == (0, 0, 39)
    assert second.reserved_tokens == 40
    assert (held.reserved, held.resident) == (100, 3)


def test_who_was_heard_of_lately_keeps_the_place() -> None:
    held, (_, second, _) = residency(40, 40, 20)
    held.touch(second, now=6.0)
    assert held.reserve(session("new", 70, now=8.0), 70, now=8.0) is None
    assert held.reserved == 100


def test_who_waits_for_something_keeps_the_place() -> None:
    held, (first, second, _) = residency(40, 40, 20)
    first.pending = DraftReceived(session="s0", round=0, base=40, draft=())
    assert held.reserve(session("new", 40, now=50.0), 40, now=50.0) == [second]


def test_sequences_are_counted_as_well_as_tokens() -> None:
    held, (first, _) = residency(10, 10, places=2)
    assert held.reserve(session("new", 10, now=3.0), 10, now=3.0) is None
    assert held.reserve(session("new", 10, now=9.0), 10, now=9.0) == [first]


def test_who_holds_most_places_makes_room_for_a_device_with_fewer_however_often_it_is_heard_of() -> None:
    held, (first, second, _) = residency(10, 10, 10, places=3)
    newcomer = session("new", 10, device="another")
    assert held.reserve(newcomer, 10, now=3.0) == [first]
    held.add(newcomer)
    assert held.reserve(session("more", 10, device="another"), 10, now=3.0) is None, "then both would have to give"
    second.pending = DraftReceived(session="s1", round=0, base=10, draft=())
    assert held.reserve(session("third", 10, device="third"), 10, now=3.0) is not None
    assert second.reserved_tokens == 10


def test_a_device_whose_sessions_all_wait_to_be_read_keeps_no_newcomer_out() -> None:
    held, (first, second, third) = residency(10, 10, 10, places=3)
    first.cached = third.cached = 0
    second.is_running, second.cached = True, 0
    assert held.reserve(session("new", 10, device="another"), 10, now=3.0) == [first]
    assert (first.reserved_tokens, second.reserved_tokens, third.reserved_tokens) == (0, 10, 10)


def test_a_session_at_rest_goes_before_one_that_waits_to_be_read() -> None:
    held, (first, second, _) = residency(10, 10, 10, places=3)
    first.cached = 0
    assert held.reserve(session("new", 10, device="another"), 10, now=3.0) == [second]
    assert held.reserve(session("own", 10), 10, now=3.0) is None, "not for the same device"


def test_who_holds_most_tokens_makes_room_for_a_device_that_will_hold_no_more() -> None:
    held, (first, second, _) = residency(40, 40, 20)
    assert held.reserve(session("new", 61, device="another"), 61, now=3.0) is None
    assert held.reserve(session("new", 60, device="another"), 60, now=3.0) is None
    assert held.reserved == 100
    assert held.reserve(session("new", 30, device="another"), 30, now=3.0) == [first]
    assert second.reserved_tokens == 40


def test_a_session_does_not_lose_its_place_to_itself() -> None:
    held, (first,) = residency(60)
    assert held.reserve(first, 101, now=100.0) is None
    assert held.reserve(first, 100, now=100.0) == []


def test_room_that_a_rejected_draft_needed_is_given_back() -> None:
    held, (first,) = residency(10)
    held.reserve(first, 30, now=0.0)
    held.shrink(first)
    assert (held.reserved, first.reserved_tokens) == (10, 10)


def test_what_is_forgotten_is_not_reserved() -> None:
    held, (first, second) = residency(10, 20)
    held.remove(first)
    assert (held.reserved, held.resident, len(held)) == (20, 1, 1)
    assert held.get("s0") is None
    assert held.get("s1") is second


# Times


def test_the_next_times_are_those_of_who_was_silent_longest() -> None:
    held, (first, second) = residency(10, 10)
    assert held.next_idle(now=0.0) == 5.0
    assert held.next_idle(now=5.5) == 6.0
    assert held.next_forgotten() == 60.0
    held.touch(first, now=2.0)
    assert held.next_forgotten() == 61.0
    assert held.overdue(now=61.5) == [second]


def test_a_session_is_in_use_until_it_was_silent_for_long() -> None:
    held, (_, second) = residency(10, 10)
    assert [held.in_use(now=now) for now in (1.0, 5.0, 6.0)] == [2, 1, 0]
    second.is_running = True
    assert held.in_use(now=100.0) == 1


def test_an_accepted_path_of_a_tree_is_held_as_far_as_the_longest_path_goes() -> None:
    for accepted, text, held in ((0, (), 10), (2, (20, 21), 12), (3, (30,), 10), (4, (20, 31), 11)):
        one = session(length=10)
        one.pending = DraftReceived(session="a", round=0, base=10, draft=(20, 21, 30, 31), parents=(0, 1, 0, 1))
        assert one.accept(accepted) == held
        assert tuple(one.text[10:]) == text
    one = session(length=10)
    one.pending = DraftReceived(session="a", round=0, base=10, draft=(20, 21))
    assert (one.accept(1), one.text[10:]) == (11, [20])


def test_a_tree_is_as_long_as_its_longest_path() -> None:
    assert DraftReceived(session="a", round=0, base=10, given=(1,), draft=(20, 21, 30), parents=(0, 1, 0)).length == 13
    assert DraftReceived(session="a", round=0, base=10, given=(1,), draft=(20, 21, 30)).length == 14
