import numpy as np
import pytest

from streamco.errors import ConfigError
from streamco.policies.importance import draft_importance
from streamco.sim.fleet.recorded_answer import END, RecordedAnswer, prompt_ids
from streamco.sim.workload.workload import SimulatedRequest


def answer(accepted: bytes, **recorded: bytes | tuple[float, ...]) -> RecordedAnswer:
    return RecordedAnswer(
        SimulatedRequest(number=3, arrival=0.0, prompt_tokens=5, output_tokens=len(accepted), accepted=accepted, **recorded)  # type: ignore[arg-type]
    )


def drafted(of: RecordedAnswer, count: int) -> list[int]:
    ids: list[int] = []
    for _ in range(count):
        ids.append(of.write(ids).id)
    return ids


def test_a_draft_is_accepted_as_far_as_the_record_says_and_the_target_goes_on_behind_it() -> None:
    of = answer(bytes([1, 1, 0, 1, 1, 1]))
    assert of.verify(drafted(of, 4), 0) == (2, of.right(2))
    assert of.verify([of.right(2), *[of.write([0] * position).id for position in (3, 4)]], 2) == (3, of.right(5))


def test_the_last_token_ends_the_text_and_the_draft_model_can_say_so() -> None:
    of = answer(bytes([1, 1, 1]))
    assert of.right(2) == END == of.right(7)
    assert drafted(of, 3)[-1] == END
    assert of.write([0] * 9).id == END


def test_no_two_places_share_a_token() -> None:
    of = answer(bytes(40))
    tokens = [token for position in range(39) for token in (of.right(position), *(one for one, _ in of.write([0] * position).alternatives))]
    assert len(set(tokens)) >= 3 * 39
    assert END not in tokens


def test_the_second_choice_is_the_targets_token_where_its_rank_says_so() -> None:
    of = answer(bytes([0, 0, 0]), ranks=bytes([1, 2, 3]))
    assert of.write([]).alternatives[1][0] == of.right(0)
    assert of.write([0]).alternatives[2][0] == of.right(1)
    assert of.right(2) not in dict(of.write([0, 0]).alternatives)


def test_without_ranks_more_than_half_of_the_misses_have_the_targets_token_second() -> None:
    of = answer(bytes(2000))
    second = sum(of.write([0] * position).alternatives[1][0] == of.right(position) for position in range(1999))
    assert 0.5 < second / 1999 < 0.6


def test_a_confidence_is_what_was_recorded_and_choices_come_likeliest_first() -> None:
    of = answer(bytes([1, 0]), confidences=(0.8, 0.2))
    assert of.write([]).confidence == 0.8
    chances = [chance for _, chance in of.write([0]).alternatives]
    assert chances == sorted(chances, reverse=True)
    assert of.draft([0])[of.write([0]).id] == of.write([0]).confidence


def test_second_choices_are_as_likely_as_was_recorded_as_far_as_there_is_room_for_them() -> None:
    of = answer(bytes([1, 0, 1]), confidences=(0.6, 0.2, 1.0), runners_up=(0.2, 0.2, 0.0))
    chances = [[chance for _, chance in of.write([0] * position).alternatives] for position in range(3)]
    assert chances[0] == pytest.approx([0.6, 0.2, 0.1])
    assert chances[1] == pytest.approx([0.2, 0.2, 0.1])
    assert chances[2] == pytest.approx([0.995, 0.0, 0.0])
    crowded = answer(bytes([1]), confidences=(0.8,), runners_up=(0.2,))
    assert sum(chance for _, chance in crowded.write([]).alternatives) == pytest.approx(1.0)


def test_prompts_have_as_many_ids_as_they_should_and_none_of_an_answer() -> None:
    assert [len(prompt_ids(length)) for length in (3, 200, 7, 0)] == [3, 200, 7, 0]
    assert max(prompt_ids(50)) < 0


def test_importance_is_the_mean_attention_within_the_draft_of_rows_that_exist() -> None:
    of = answer(bytes([1, 1, 1, 1]), attention=bytes([51, 102, 102, 204, 0, 255, 51, 51]))
    assert of.importance(0, 1) is None  # the row of the newest token comes with the next
    assert of.importance(0, 2) == pytest.approx(51 / 255)
    assert of.importance(0, 3) == pytest.approx((51 + 204) / 2 / 255)
    assert of.importance(1, 3) == pytest.approx((102 + 255) / 2 / 255)
    with pytest.raises(ConfigError, match="expected drafts of at most 3 tokens, as far as attention was recorded, got 4"):
        of.importance(0, 4)


def test_importance_is_what_the_engine_makes_of_the_same_rows() -> None:
    rows = [np.array([[0.25]]), np.array([[0.125, 0.5]]), np.array([[0.1, 0.2, 0.3]])]  # of one layer each, up to the row's own token
    cumulative = [np.cumsum(row[0, ::-1]) for row in rows]
    recorded = [round(255 * float(sums[min(depth, len(sums) - 1)])) for sums in (*cumulative, cumulative[-1]) for depth in range(3)]
    assert answer(bytes([1] * 4), attention=bytes(recorded)).importance(0, 4) == pytest.approx(draft_importance(rows), abs=0.003)


def test_without_recorded_attention_there_is_no_importance() -> None:
    assert answer(bytes([1, 1, 1])).importance(0, 3) is None


def test_a_text_ends_after_its_record_even_if_the_draft_model_said_otherwise() -> None:
    of = answer(bytes([1, 0]))
    assert of.write([of.right(0)]).id != END
    assert of.write([0, 0]).id == of.write([0] * 5).id == END


def test_a_tree_is_verified_along_the_targets_tokens() -> None:
    of = answer(bytes([1, 0, 1, 1, 1]))
    right = [of.right(position) for position in range(5)]
    draft = [right[0], right[1] + 1, right[2], right[1]]  # the last one stands in the place of the second
    assert of.verify(draft, 0, (0, 1, 2, 1)) == (4, right[2])
    assert of.verify(draft[:3], 0, (0, 1, 2)) == of.verify(draft[:3], 0) == (1, right[1])
