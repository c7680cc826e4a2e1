"""The draft network and its scores, on a teacher with small random weights; PyTorch is needed for training alone."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.data.small_teacher import SIZES, small_teacher, texts, torch

network_module, scores_module, teacher_module, text_module = (
    import_module(f"bench.data.draft_{name}")
    for name in ("network", "scores", "teacher", "text")  # PyTorch has no types where it isn't
)
DraftNetwork, batch_of = network_module.DraftNetwork, network_module.batch_of
DraftedText, scores, tokens_a_round = scores_module.DraftedText, scores_module.scores, scores_module.tokens_a_round
rms, HELD_OUT, load, save = teacher_module.rms, text_module.HELD_OUT, text_module.load, text_module.save


def test_what_was_written_step_by_step_is_what_the_whole_text_gives() -> None:
    teacher = small_teacher()
    for text in texts(teacher):
        states = teacher.shallow(torch.tensor(text.ids.astype(np.int64))[None], 3)[0]
        deep = (rms(states, SIZES.epsilon) * teacher.norm)[text.prompt - 1 : -1]
        assert text.deep.shape == deep.shape == (len(text.ids) - text.prompt, 32)
        assert np.abs(text.deep - deep.numpy()).max() < 0.1  # of bfloat16


def test_greedy_text_is_the_likeliest_token_each_time() -> None:
    teacher = small_teacher()
    [text] = teacher.write([[1, 2, 3]], most=6, ends=[], temperature=0.0, seed=0)
    for place, token in enumerate(text.ids[text.prompt :]):
        logits = torch.tensor(text.deep[place].astype(np.float32)) @ teacher.output.float().T
        assert logits[token] > logits.max() - 0.1


def test_texts_that_end_early_do_not_disturb_the_others() -> None:
    teacher = small_teacher()
    prompts = [[1, 2, 3, 4 + row] for row in range(6)]
    together = teacher.write(prompts, most=10, ends=[7, 11, 13, 20, 30], temperature=0.0, seed=0)
    for prompt, text in zip(prompts, together, strict=True):
        [alone] = teacher.write([prompt], most=10, ends=[7, 11, 13, 20, 30], temperature=0.0, seed=0)
        assert alone.ids.tolist() == text.ids.tolist()
        assert np.abs(alone.deep - text.deep).max() < 0.1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_depth_is_a_draft_that_began_so_many_positions_before(depth: int) -> None:
    """Unrolled training against drafting step by step, each step with the keys that it would have."""
    teacher = small_teacher()
    network = DraftNetwork(teacher, "deep")
    with torch.no_grad():
        network.weights["fuse"].copy_(torch.randn(32, 64, generator=torch.Generator().manual_seed(1)) / 8)
        batch = batch_of(teacher, texts(teacher, 1), input_layers=2)
        made = network(batch, depth)[-1][0]
        for end in range(int(batch.is_drafted[0].nonzero()[0]) + depth, batch.ids.shape[1]):
            start = end - depth + 1  # the draft's first position; true deep states are known before it
            deep = batch.deep.clone()
            for place in range(start, end):
                deep[0, place] = network(batch_with(batch, deep), 1)[0][0, place]
            stepwise = network(batch_with(batch, deep), 1)[0][0, end]
            assert torch.dist(stepwise, made[end]) < 0.05 * made[end].norm()


def batch_with(batch: Any, deep: Any) -> Any:
    return type(batch)(batch.ids, batch.shallow, deep, batch.is_drafted)


def test_the_closed_form_is_better_than_nothing() -> None:
    teacher = small_teacher()
    network = DraftNetwork(teacher, "deep")
    batch = batch_of(teacher, texts(teacher, 40), input_layers=2)
    network.begin(teacher, [batch], teacher.output)
    with torch.no_grad():
        made, deep = network(batch, 1)[0][batch.is_drafted], batch.deep[batch.is_drafted]
    cosine = torch.nn.functional.cosine_similarity(made, deep).mean()
    assert cosine > 0.3


def drafted(hits: list[list[int]], confidence: list[list[float]] | None = None) -> Any:
    shown = np.ones((len(hits), len(hits[0])), np.float32) if confidence is None else np.array(confidence, np.float32)
    return DraftedText(np.array(hits, bool), shown)


def test_tokens_a_round_counts_the_correction() -> None:
    assert tokens_a_round([drafted([[0, 0, 0, 0]])]) == 1.0
    assert tokens_a_round([drafted([[1, 1, 1, 1]])], window=1) == 2.0
    assert tokens_a_round([drafted([[1, 1, 1, 0], [1, 1, 1, 0]])], window=3) == 4.0
    assert tokens_a_round([drafted([[1, 0, 1, 0], [0, 0, 0, 0]])], window=2) == 2.0
    unsure = drafted([[1, 1, 1, 1], [1, 1, 1, 1]], [[0.2] * 4, [0.9] * 4])
    assert tokens_a_round([unsure], threshold=0.5) == 2.0


def test_scores_say_how_often_the_second_token_is_right_after_a_right_first() -> None:
    found = scores([drafted([[1, 1, 0, 1], [0, 1, 1, 0]])])
    assert (found["positions"], found["acceptance"], found["second"]) == (4, 0.75, 1.0)


def test_no_right_first_token_means_no_second() -> None:
    assert scores([drafted([[0, 0], [1, 1]])])["second"] == 0.0


def test_texts_are_kept_and_some_held_out(tmp_path: Path) -> None:
    made = texts(small_teacher(), 20)
    save(tmp_path / "kind.0000.npz", made, range(20))
    learned = list(load(tmp_path, ["kind"], is_held_out=False))
    held_out = list(load(tmp_path, ["kind"], is_held_out=True))
    assert (len(learned), len(held_out)) == (20 - 20 // HELD_OUT, 20 // HELD_OUT)
    assert [text.ids.tolist() for text in held_out] == [made[0].ids.tolist(), made[HELD_OUT].ids.tolist()]
    assert np.array_equal(held_out[1].deep, made[HELD_OUT].deep)
    assert not list(load(tmp_path, ["other"], is_held_out=False))
