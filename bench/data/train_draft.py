"""Train the draft layer of a split model (HAT, section 3.4), judge it, and write its weights.

    python -m bench.data.train_draft --model model.gguf --texts /tmp/draft --out /tmp/deep.npz --kind deep --visits 3000000
    python -m bench.data.train_draft --model model.gguf --texts /tmp/draft --out /tmp/deep.npz --judge
    python -m bench.data.train_draft --model model.gguf --texts /tmp/draft --out /tmp/deep.npz --ship draft_layers/NAME.npz

``bench.data.draft_text`` writes the texts. Training learns from the whole model's probabilities over the drafted vocabulary (for
``paper`` equation 4 with its states, too). It writes a checkpoint from time to time; begun again, it goes on. ``--out`` has the
weights, and ``OUT.json`` the recipe, a digest of the texts and the scores. Needs PyTorch: ``pip install ".[train,split]"``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from bench.data.draft_network import Batch, DraftNetwork, Kind, batch_of
from bench.data.draft_scores import scores, texts_drafted
from bench.data.draft_teacher import Teacher, Written
from bench.data.draft_text import load
from streamco.engines.llamacpp.draft_model import DraftMeta, pack_matrix
from streamco.engines.llamacpp.model import LlamaModel

__all__ = ["main"]

_BATCH, _DRAWS = 6, 4  # texts of a step; steps' worth of texts drawn, of which one step takes a quarter of similar lengths
_WARM, _DECAY = 30, 0.6  # steps until the full rate; share of the training after which it falls
_LATER = 0.8  # weight of the second depth's loss
_SAVE_EVERY = 200  # steps
_LOSS_ROWS = 64
_JUDGED = 48  # texts of each kind
_AVERAGE = 0.98  # weight of the past in the averaged weights


def drafted_vocabulary(texts: Sequence[Written], size: int, rows: int) -> NDArray[np.int64]:
    """Return the ids that answers use most, in ascending order; lower ids, which are more frequent in most vocabularies, fill it up.

    Args:
        texts: with the answers.
        size: of the whole vocabulary.
        rows: ids to return.
    """
    counts = np.bincount(np.concatenate([text.ids[text.prompt :] for text in texts]), minlength=size)
    order = np.lexsort((np.arange(len(counts)), -counts))
    return np.sort(order[:rows]).astype(np.int64)


def shares_of(counts: Sequence[int], weights: Sequence[float] | None) -> NDArray[np.float64]:
    """Return how likely each text is to be drawn.

    Args:
        counts: texts of each kind.
        weights: how often a kind is drawn beside the others; None: all texts equally often.

    Raises:
        ValueError: a kind has no texts, or the weights aren't one for each kind.
    """
    weights = counts if weights is None else weights
    if not all(counts) or len(weights) != len(counts):
        raise ValueError(f"expected texts and a weight for each kind, got {list(counts)} texts and {len(weights)} weights")
    each = np.repeat([weight / count for weight, count in zip(weights, counts, strict=True)], counts)
    return each / each.sum()


def loss_of(kind: Kind, made: Sequence[Tensor], batch: Batch, head: Tensor) -> Tensor:
    """Return the loss: cross-entropy with the model's own probabilities; for ``paper`` equation 4."""
    deep = batch.deep[batch.is_drafted]
    states = torch.stack([each[batch.is_drafted] for each in made])
    weights = _LATER ** torch.arange(len(made))
    entropies = soft_entropies(states, deep, head)
    if kind == "deep":
        return (weights * entropies).sum()
    distances = torch.stack([functional.smooth_l1_loss(each, deep) for each in states])
    return (weights * (distances + 0.1 * entropies)).sum()


def soft_entropies(made: Tensor, deep: Tensor, head: Tensor) -> Tensor:
    """Return the mean cross-entropy of each depth's probabilities with the model's own, shape (depths,).

    A few rows at a time, with their gradient: logits of all rows would leave the processor's cache, and autograd would keep three copies.

    Args:
        made: predicted deep states, shape (depths, rows, width).
        deep: the model's, shape (rows, width).
        head: rows of the output matrix, shape (drafted vocabulary, width).
    """
    with torch.no_grad():
        slopes, entropies = torch.empty_like(made), torch.zeros(len(made))
        for start in range(0, len(deep), _LOSS_ROWS):
            place = slice(start, start + _LOSS_ROWS)
            wanted = functional.linear(deep[place].bfloat16(), head).float().softmax(-1)
            for depth, states in enumerate(made[:, place]):
                shares = functional.linear(states.bfloat16(), head).float().log_softmax(-1)
                entropies[depth] -= torch.dot(shares.view(-1), wanted.view(-1))
                slopes[depth, place] = shares.exp_().sub_(wanted).bfloat16() @ head
        slopes /= len(deep)
        entropies /= len(deep)
    through = (made * slopes).sum((1, 2))  # its gradient is the entropies', its value isn't
    return entropies + through - through.detach()


class Training:
    """One training, which can be interrupted.

    Args:
        args: the command line.
        teacher: gives shallow states and the output matrix.
        texts: to learn from.
        shares: how likely each text is to be drawn, shape (texts,), sum 1.
    """

    def __init__(self, args: argparse.Namespace, teacher: Teacher, texts: list[Written], shares: NDArray[np.float64]) -> None:
        self._args, self._teacher, self._texts, self._shares = args, teacher, texts, shares
        self.rows = drafted_vocabulary(texts, len(teacher.embeddings), args.rows)
        self.head = teacher.output[torch.from_numpy(self.rows)].contiguous()
        self.network = DraftNetwork(teacher, args.kind, args.inner)
        self.average = DraftNetwork(teacher, args.kind, args.inner)
        self._optimiser = torch.optim.AdamW(self._groups(), lr=args.rate, betas=(0.9, 0.95))
        self._random = np.random.default_rng(args.seed)
        self.steps = self.visits = 0
        self.curve: list[dict[str, Any]] = []
        self._shallow: dict[bytes, Tensor] = {}  # of texts by their ids: two layers cost more than the draft layer

    def _groups(self) -> list[dict[str, Any]]:
        matrices = [value for value in self.network.parameters() if value.dim() == 2]
        vectors = [value for name, value in self.network.weights.items() if value.dim() < 2 and name != "norm"]
        return [
            {"params": matrices, "weight_decay": 0.01, "factor": 1.0},
            {"params": vectors, "weight_decay": 0.0, "factor": 1.0},
            {"params": [self.network.weights["norm"]], "weight_decay": 0.0, "factor": 3.0},
        ]

    @property
    def _checkpoint(self) -> Path:
        return Path(f"{self._args.out}.checkpoint")

    def begin(self) -> None:
        """Start from the checkpoint, or from the closed form."""
        if self._checkpoint.exists():
            found = torch.load(self._checkpoint, weights_only=False)
            self.network.load_state_dict(found["network"])
            self.average.load_state_dict(found["average"])
            self._optimiser.load_state_dict(found["optimiser"])
            self.steps, self.visits, self.curve, self.rows = found["steps"], found["visits"], found["curve"], found["rows"]
            self.head = self._teacher.output[torch.from_numpy(self.rows)].contiguous()
            self._random = np.random.default_rng([self._args.seed, self.steps])
        elif self._args.kind == "deep":
            batches = (self._batch(self._texts[start : start + 16]) for start in range(0, min(len(self._texts), 1600), 16))
            self.network.begin(self._teacher, batches, self.head)
            self.average.load_state_dict(self.network.state_dict())
        else:
            self.average.load_state_dict(self.network.state_dict())

    def save(self) -> None:
        """Write the checkpoint, and the averaged weights."""
        state = {
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "steps": self.steps,
            "visits": self.visits,
            "curve": self.curve,
            "rows": self.rows,
        }
        part = Path(f"{self._checkpoint}.part")
        torch.save(state, part)
        part.replace(self._checkpoint)
        np.savez(self._args.out, rows=self.rows, **self.average.arrays())

    def run(self) -> None:
        """Train up to ``--visits`` positions, or as long as ``--minutes``."""
        started, last, entropy = time.monotonic(), self.visits, 0.0
        while (done := self._done(started)) < 1:
            loss = self._step(self._batch(self._draw()), done)
            entropy = loss if not entropy else 0.98 * entropy + 0.02 * loss
            if self.steps % _SAVE_EVERY == 0:
                self.save()
                spent = time.process_time()
                print(f"{self.steps} steps, {self.visits} visits, loss {entropy:.4f}, {spent:.0f} s of processor time", flush=True)
            if self.visits - last >= self._args.judge_every:
                last = self.visits
                self.curve.append({"visits": self.visits, **judge(self._args, self._teacher, self.average, self.head, self.rows)})
                print(json.dumps(self.curve[-1]), flush=True)
        self.save()

    def _draw(self) -> list[Written]:
        """Return the texts of a step: drawn by their shares, of similar lengths, because a batch is as long as its longest text."""
        drawn = self._random.choice(len(self._texts), _BATCH * _DRAWS, replace=False, p=self._shares)
        inorder = sorted(drawn, key=lambda place: len(self._texts[place].ids))
        first = _BATCH * int(self._random.integers(_DRAWS))
        return [self._texts[place] for place in inorder[first : first + _BATCH]]

    def _done(self, started: float) -> float:
        return max(self.visits / self._args.visits, (time.monotonic() - started) / 60 / self._args.minutes)

    def _step(self, batch: Batch, done: float) -> float:
        rate = self._args.rate * min(1.0, (self.steps + 1) / _WARM)
        if done > _DECAY:
            rate *= max(0.03, (1 - done) / (1 - _DECAY))
        for group in self._optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        loss = loss_of(self._args.kind, self.network(batch, self._args.depth), batch, self.head)
        self._optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimiser.step()
        self.steps += 1
        self.visits += int(batch.is_drafted.sum())
        weight = min(_AVERAGE, self.steps / (self.steps + 10))
        with torch.no_grad():
            for mean, value in zip(self.average.parameters(), self.network.parameters(), strict=True):
                mean.mul_(weight).add_(value, alpha=1 - weight)
        return float(loss.detach())

    def _batch(self, texts: Sequence[Written]) -> Batch:
        return batch_of(self._teacher, texts, input_layers=self._args.input_layers, known=self._shallow)


def judge(args: argparse.Namespace, teacher: Teacher, network: DraftNetwork, head: Tensor, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return the scores by kind of text: held out of the trained kinds, and all of the others."""
    row_of = torch.full((len(teacher.embeddings),), -1)
    row_of[torch.from_numpy(rows)] = torch.arange(len(rows))
    found = {}
    for kind in (*(args.kinds if args.judged is None else args.judged), *args.absent):
        held_out, others = load(args.texts, [kind], is_held_out=True), load(args.texts, [kind], is_held_out=False)
        texts = list(islice(chain(held_out, others if kind in args.absent else ()), _JUDGED))
        if texts:
            found[kind] = scores(texts_drafted(network, teacher, texts, head, row_of, input_layers=args.input_layers))
    return found


def digest_of(texts: Sequence[Written]) -> str:
    """Return a digest of the token ids of texts."""
    whole = sha256()
    for text in texts:
        whole.update(text.ids.tobytes())
    return whole.hexdigest()


def ship(args: argparse.Namespace) -> None:
    """Write the weights in the package's form: matrices as 8-bit numbers, vectors as 16-bit floats."""
    with np.load(args.out) as found:
        arrays = {name: found[name] for name in found.files}
    model = LlamaModel(args.model)
    meta = DraftMeta(args.model.stem, model.info.vocabulary, len(arrays["norm"]), args.input_layers)
    shipped: dict[str, NDArray[Any]] = {
        "meta": np.frombuffer(msgspec.json.encode(meta), np.uint8),
        "rows": arrays.pop("rows").astype(np.uint32),
    }
    for name, value in arrays.items():
        if value.ndim == 1:
            shipped[name] = value.astype(np.float16)
        else:
            shipped[name], shipped[f"{name}.scales"] = pack_matrix(value)
    args.ship.parent.mkdir(parents=True, exist_ok=True)
    part = args.ship.with_suffix(".part.npz")
    np.savez_compressed(part, **shipped)
    part.replace(args.ship)
    print(f"{args.ship}: {args.ship.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    """Train, judge or ship; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the whole model's GGUF file")
    parser.add_argument("--texts", type=Path, required=True, help="folder that bench.data.draft_text has written")
    parser.add_argument("--out", type=Path, required=True, help="the weights, .npz")
    parser.add_argument("--kind", choices=["deep", "paper"], default="deep")
    parser.add_argument("--kinds", nargs="*", default=["written", "gsm8k", "specbench"], help="kinds of text to learn from")
    parser.add_argument("--weights", nargs="*", type=float, help="how often each kind is drawn (default: all texts equally often)")
    parser.add_argument("--absent", nargs="*", default=["humaneval", "alpaca"], help="kinds to be judged by alone")
    parser.add_argument("--judged", nargs="*", help="kinds whose held-out texts are judged (default: all that are learned from)")
    parser.add_argument("--input-layers", type=int, default=2, help="layers on the device (default: %(default)s)")
    parser.add_argument("--inner", type=int, help="width of the feed-forward part, a multiple of 32 (default: the model's)")
    parser.add_argument("--rows", type=int, default=16_384, help="tokens that drafts are chosen from (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate; a wide model needs a smaller one (default: %(default)s)")
    parser.add_argument("--visits", type=float, default=3e6, help="positions to train on, repeated ones included (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=1e9, help="most minutes to train")
    parser.add_argument("--depth", type=int, default=2, help="draft tokens that training unrolls (default: %(default)s)")
    parser.add_argument("--judge-every", type=float, default=500_000, help="visits between two scores (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--judge", action="store_true", help="only print the scores")
    parser.add_argument("--ship", type=Path, help="only write the weights in the package's form")
    args = parser.parse_args()
    if args.ship:
        ship(args)
        return
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    sizes = Teacher(args.model, []).sizes
    teacher = Teacher(args.model, [*range(args.input_layers), sizes.layers - 1])
    found = [list(load(args.texts, [kind], is_held_out=False)) for kind in args.kinds]
    texts, shares = list(chain(*found)), shares_of(list(map(len, found)), args.weights)
    training = Training(args, teacher, texts, shares)
    training.begin()
    if not args.judge:
        if not training.steps:
            print(json.dumps({"visits": 0, **judge(args, teacher, training.average, training.head, training.rows)}), flush=True)
        training.run()
    recipe = {
        "model": args.model.name,
        "kind": args.kind,
        "kinds": args.kinds,
        "weights": args.weights,
        "input_layers": args.input_layers,
        "inner": args.inner,
        "rate": args.rate,
        "seed": args.seed,
        "depth": args.depth,
        "texts": len(texts),
        "answer_tokens": sum(len(text.ids) - text.prompt for text in texts),
        "text_digest": digest_of(texts),
        "visits": training.visits,
        "curve": training.curve,
        "scores": judge(args, teacher, training.average, training.head, training.rows),
    }
    Path(f"{args.out}.json").write_text(json.dumps(recipe, indent=1) + "\n")
    print(json.dumps(recipe["scores"], indent=1))


if __name__ == "__main__":
    main()
