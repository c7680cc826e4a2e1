"""The loss, the draws and the curve of a draft layer's training, on a teacher with small random weights."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.data.small_teacher import small_teacher, texts, torch

training_module, network_module, text_module = (
    import_module(f"bench.data.{name}") for name in ("train_draft", "draft_network", "draft_text")
)
Training, loss_of, shares_of = training_module.Training, training_module.loss_of, training_module.shares_of


def training(folder: Path, shares: Any = None, count: int = 40, **options: Any) -> Any:
    found = texts(small_teacher(), count)
    args = Namespace(kind="deep", seed=0, out=folder / "out.npz", input_layers=2, depth=2, visits=300.0, minutes=1e9, judge_every=100.0)
    args.inner, args.rows, args.rate = None, 16_384, 1e-3
    args.texts, args.kinds, args.judged, args.absent = folder, ["kind"], None, []
    vars(args).update(options)
    return Training(args, small_teacher(), found, np.full(count, 1 / count) if shares is None else shares)


def test_the_loss_and_its_gradient_are_those_of_the_whole_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module, "_LOSS_ROWS", 5)  # some chunks, the last one shorter
    generator = torch.Generator().manual_seed(2)
    made = torch.randn(2, 13, 32, generator=generator).requires_grad_()
    deep, head = torch.randn(13, 32, generator=generator), torch.randn(50, 32, generator=generator).bfloat16()
    found = training_module.soft_entropies(made, deep, head)
    (found * torch.tensor([1.0, 0.8])).sum().backward()
    slopes, made.grad = made.grad, None

    wanted = (deep.bfloat16() @ head.T).float().softmax(-1)
    whole = torch.stack([-(wanted * (each.bfloat16() @ head.T).float().log_softmax(-1)).sum(-1).mean() for each in made])
    (whole * torch.tensor([1.0, 0.8])).sum().backward()
    assert torch.allclose(found, whole, rtol=1e-3)
    assert torch.dist(slopes, made.grad) < 0.01 * made.grad.norm()


@pytest.mark.parametrize("kind", ["deep", "paper"])
def test_a_step_makes_the_loss_smaller(tmp_path: Path, kind: str) -> None:
    trained = training(tmp_path, kind=kind)
    batch = trained._batch(trained._texts)
    before = float(loss_of(kind, trained.network(batch, 2), batch, trained.head).detach())
    for _ in range(20):
        trained._step(batch, 0.0)
    assert float(loss_of(kind, trained.network(batch, 2), batch, trained.head).detach()) < before


def test_a_narrow_feed_forward_part_and_few_rows_are_trained_and_saved(tmp_path: Path) -> None:
    trained = training(tmp_path, inner=32, rows=20)
    trained.begin()
    trained.save()
    with np.load(tmp_path / "out.npz") as found:
        assert [found[name].shape for name in ("ffn_gate", "ffn_up", "ffn_down")] == [(32, 32)] * 3
        assert len(found["rows"]) == 20
    again = training(tmp_path, inner=32, rows=20)
    again.begin()
    assert torch.equal(again.average.weights["ffn_up"], trained.average.weights["ffn_up"])


def test_shallow_states_are_computed_once_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = training(tmp_path)
    first = trained._batch(trained._texts[:3])
    calls: list[int] = []
    monkeypatch.setattr(trained._teacher, "shallow", lambda ids, layers: calls.append(len(ids)))
    again = trained._batch(trained._texts[1:3])
    assert not calls
    for row, text in enumerate(trained._texts[1:3]):
        length = len(text.ids)
        assert torch.allclose(again.shallow[row, :length], first.shallow[1 + row, :length], rtol=0.01)


def test_kinds_are_drawn_as_often_as_their_weights_say(tmp_path: Path) -> None:
    shares = shares_of([30, 10], [1, 3])
    assert shares.sum() == pytest.approx(1)
    assert shares[30:].sum() == pytest.approx(0.75)
    assert shares_of([30, 10], None) == pytest.approx(np.full(40, 1 / 40))
    drawn = training(tmp_path, np.where(np.arange(40) < 30, 1 / 30, 0.0))
    last = [text.ids.tobytes() for text in drawn._texts[30:]]
    assert all(text.ids.tobytes() not in last for _ in range(40) for text in drawn._draw())


@pytest.mark.parametrize(("counts", "weights"), [([3, 0], None), ([3, 4], [1.0])])
def test_a_kind_without_texts_or_weight_is_refused(counts: list[int], weights: list[float] | None) -> None:
    with pytest.raises(ValueError, match="expected texts and a weight for each kind"):
        shares_of(counts, weights)


def test_the_texts_of_a_step_have_similar_lengths_and_all_have_their_turn(tmp_path: Path) -> None:
    drawn = training(tmp_path)
    for place, text in enumerate(drawn._texts):
        drawn._texts[place] = type(text)(np.resize(text.ids, 10 + 3 * place), text.prompt, text.deep)
    seen: Counter[int] = Counter()
    for _ in range(300):
        lengths = [len(text.ids) for text in drawn._draw()]
        assert max(lengths) - min(lengths) < 90
        seen.update(lengths)
    assert len(seen) == 40
    assert max(seen.values()) < 3 * min(seen.values())


def test_a_training_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    text_module.save(tmp_path / "kind.0000.npz", texts(small_teacher(), 40), range(40))
    first = training(tmp_path)
    first.begin()
    first.run()
    assert first.visits >= 300
    assert [sorted(each) for each in first.curve] == [["kind", "visits"]] * len(first.curve)
    again = training(tmp_path)
    again.begin()
    assert (again.steps, again.visits, again.curve) == (first.steps, first.visits, first.curve)
    for mine, saved in zip(again.average.parameters(), first.average.parameters(), strict=True):
        assert torch.equal(mine, saved)


def test_only_the_kinds_asked_for_are_judged(tmp_path: Path) -> None:
    for kind in ("kind", "other"):
        text_module.save(tmp_path / f"{kind}.0000.npz", texts(small_teacher(), 20), range(20))
    trained = training(tmp_path, kinds=["kind", "other"], judged=["other"])
    found = training_module.judge(trained._args, small_teacher(), trained.average, trained.head, trained.rows)
    assert list(found) == ["other"]
