"""Train the network that chooses the window, and write its weights (DSD sections 4.1 and 4.3).

    python -m bench.data.train_window /tmp/windows.jsonl /tmp/fleets.jsonl --write streamco/policies/windownet.json

The paper's network gives one figure, the window, which means fused mode if it is 1 or less. That is the verdict here, and there is a second
figure: the window if drafting it is. Between worlds that want fused mode and worlds that want ten tokens the first passes through windows
that are best in neither. And if the server can't continue alone, the first has no meaning.

``compare`` says what each choice of inputs is good for, and the paper's loss beside another: the mean error of the window, wrong
verdicts, and the regret, by how much what is said costs more than what is best (``bench.papers.window_inputs``). All of it in worlds that
the network has not seen, a sixth; another sixth is not looked at here, but by ``bench.papers.window_regret``. Nothing else needs PyTorch
(``streamco[train]``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from bench.data.window_data import WINDOWS
from bench.data.window_rows import CHOICES, Floats, Rows, score, table_of
from streamco.policies.learned_window import INPUTS, WindowNet, WindowWeights

__all__ = ["compare", "main"]

Loss = Literal["l1", "regret"]
WIDTH = 32
EPOCHS = 100  # section 4.3, as the loss and the optimiser are
BATCH = 2048
RATE, DECAY = 3e-3, 1e-2
PARTS, CHECKED = 6, 1  # a world whose number leaves 1 is for looking at while training; one that leaves 0 for bench.papers.window_regret
CLOSE = 2e-3  # tokens, for six digits and 32 bits
MOST = 1.0  # of a regret that is learned from: whether a window takes twice or ten times as long, it isn't chosen
WAY = 0.02  # regret that a token's distance from the label counts as


class Block(nn.Module):
    """What it is given, and what two layers make of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Tensor) -> Tensor:
        """Shape (rows, WIDTH), both."""
        made: Tensor = self.outer(nn.functional.silu(self.inner(given)))
        return given + made


def network(inputs: int) -> nn.Sequential:
    """Two residual blocks between a layer in and a layer out (figure 3)."""
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.SiLU(), Block(), Block(), nn.Linear(WIDTH, 2))


def _loss(kind: Loss, predicted: Tensor, right: Tensor, regrets: Tensor) -> Tensor:
    """Of verdicts or windows: their distance from what is right; or what they cost, read off the line through the regrets at 0, 1, ... 12.

    Where that line is flat, or rises towards the best window, the distance shows the way.
    """
    distance = nn.functional.l1_loss(predicted, right)
    if kind == "l1":
        return distance
    inside = predicted.clamp(0.0, WINDOWS[-1] - 1e-3)
    below = inside.floor().long()
    before, behind = (regrets.gather(1, row[:, None])[:, 0] for row in (below, below + 1))
    return (before + (behind - before) * (inside - below)).mean() + WAY * distance


def train(inputs: Sequence[str], rows: Rows, *, loss: Loss, seed: int) -> tuple[nn.Sequential, Floats, Floats]:
    """A network for these inputs; also their means and deviations, by which they are made comparable."""
    torch.manual_seed(seed)
    table = table_of(inputs, rows)
    mean, deviation = table.mean(axis=0), table.std(axis=0)
    alone = rows.costs[:, 1:] / rows.costs[:, 1:].min(axis=1, keepdims=True)
    verdicts, windows, given = _tensor(rows.verdicts), _tensor(rows.windows), _tensor((table - mean) / deviation)
    of_verdicts = _tensor(np.minimum(rows.costs[:, [0, *range(12)]] - 1.0, MOST))  # at 0 and at 1 it is fused mode
    of_windows = _tensor(np.minimum(alone[:, [0, 0, *range(11)]] - 1.0, MOST))
    net = network(len(inputs))
    optimiser = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    steps = EPOCHS * -(-len(given) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(given)).split(BATCH):
            optimiser.zero_grad()
            predicted = net(given[batch])
            lost = _loss(loss, predicted[:, 0], verdicts[batch], of_verdicts[batch])
            (lost + _loss(loss, predicted[:, 1], windows[batch], of_windows[batch])).backward()
            optimiser.step()
            schedule.step()
    return net.eval(), mean, deviation


def _tensor(values: Floats) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def predictions_of(net: nn.Sequential, mean: Floats, deviation: Floats, table: Floats) -> Floats:
    """Verdicts and windows, shape (rows, 2), for inputs of shape (rows, inputs)."""
    with torch.no_grad():
        return np.asarray(net(_tensor((table - mean) / deviation)).double())


def compare(paths: Sequence[Path], *, networks: int) -> Iterator[Mapping[str, object]]:
    """Yield what each choice of inputs is good for with each loss: means over networks that began differently, and half their range.

    Args:
        paths: what ``bench.data.window_data`` has made.
        networks: number of networks of each.
    """
    trained, checked = read_parts(paths)
    names = ("error", "wrong", "regret", "without_fused")
    for title, inputs in CHOICES.items():
        for loss in get_args(Loss):
            nets = (train(inputs, trained, loss=loss, seed=seed) for seed in range(networks))
            found = np.array([score(predictions_of(*net, table_of(inputs, checked)), checked) for net in nets])
            means = dict(zip(names, _short(found.mean(axis=0)), strict=True))
            spreads = zip(names, _short(np.ptp(found, axis=0) / 2.0), strict=True)
            yield {"inputs": title, "loss": loss, **means, **{f"{name}_spread": spread for name, spread in spreads}}


def read_parts(paths: Sequence[Path]) -> tuple[Rows, Rows]:
    """Return the rows to learn from, and those for looking at; PyTorch has one thread then, so that a command gives the same each time."""
    torch.set_num_threads(1)
    rows = Rows.read(paths)
    return rows.where(rows.worlds % PARTS >= 2), rows.where(rows.worlds % PARTS == CHECKED)


def write(path: Path, made: Mapping[str, object], trained: Rows, *, loss: Loss, seed: int, checked: Rows) -> None:
    """Train the network that is shipped, and write it down.

    Raises:
        AssertionError: the client reckons otherwise with it than PyTorch does.
    """
    net, mean, deviation = train(INPUTS, trained, loss=loss, seed=seed)
    low, high = (bound(table_of(INPUTS, trained), axis=0) for bound in (np.min, np.max))
    inputs = np.clip(table_of(INPUTS, checked), low, high)
    predicted = predictions_of(net, mean, deviation, inputs)
    error, wrong, regret, alone = (round(figure, 4) for figure in score(predicted, checked))
    figures = {"error": error, "wrong verdicts": wrong, "regret": regret, "regret without fused mode": alone}
    entry, _, first, second, last = net.children()
    content = {
        "made": {**made, "loss": loss, "seed": seed, "in unseen worlds": figures},
        "inputs": INPUTS,
        "mean": _short(mean),
        "deviation": _short(deviation),
        "low": _short(low),
        "high": _short(high),
        "entry": _layer(entry),
        "blocks": [[_layer(block.inner), _layer(block.outer)] for block in (first, second)],
        "exit": _layer(last),
    }
    text = json.dumps(content, separators=(",", ":")).replace('],"', '],\n"').replace('},"', '},\n"')
    reckoned = WindowNet(msgspec.json.decode(text, type=WindowWeights))
    for row in range(0, len(predicted), len(predicted) // 200 + 1):
        if np.abs(np.array(reckoned.evaluate(inputs[row])) - predicted[row]).max() > CLOSE:
            raise AssertionError(f"row {row}: expected {predicted[row]}, got {reckoned.evaluate(inputs[row])}")
    path.write_text(text + "\n")
    print(f"{path}: {len(text)} bytes; {figures}")


def _layer(layer: nn.Module) -> dict[str, object]:
    assert isinstance(layer, nn.Linear)
    return {
        "weights": [_short(row) for row in layer.weight.detach().double().numpy()],
        "bias": _short(layer.bias.detach().double().numpy()),
    }


def _short(values: Floats) -> list[float]:
    """Six digits say nearly as much as 32 bits do."""
    return [float(f"{value:.6g}") for value in values]


def main() -> int:
    """Write the network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path, nargs="+", help="what bench.data.window_data has made")
    parser.add_argument("--write", type=Path, required=True, help="where the network goes")
    parser.add_argument("--loss", choices=get_args(Loss), default="regret", help="the paper's is l1 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    trained, checked = read_parts(options.data)
    made = {
        "by": "python -m bench.data.train_window DATA --write THIS",
        "data": "python -m bench.data.window_data --out DATA, and with --fleets",
        "worlds": [len(path.read_bytes().splitlines()) for path in options.data],
        "rows": len(trained.worlds),
    }
    write(options.write, made, trained, loss=options.loss, seed=options.seed, checked=checked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
