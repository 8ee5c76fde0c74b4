"""Train a small classifier of handwritten digits on strideweave tensors alone, and the same model in torch.

    $ python examples/train_mlp.py
    $ python examples/train_mlp.py --epochs 40 --seed 3 --json

Both start from the same weights, see the same batches in the same order, and take the same optimizer: the accuracies
agree, and the ratio of the times is what a strideweave operation costs on tensors this small.
Data: scikit-learn's digits (1797 images of 8 x 8), split into 1437 for training and 360 for testing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits

import strideweave as sw

HIDDEN = 128
CLASSES = 10


@dataclass(frozen=True)
class Outcome:
    """How one library did. Units: `train_s` in seconds, `accuracy` as a fraction of the test images."""

    library: str
    accuracy: float
    final_loss: float
    train_s: float


@dataclass(frozen=True)
class Data:
    """Images and labels of both parts, and the order of the training batches."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    batches: list[torch.Tensor]


def load(*, seed: int, epochs: int, batch: int) -> Data:
    """The digits, shuffled and split four to one, with pixels scaled to [0, 1]."""
    digits: Any = load_digits()
    images = torch.from_numpy(digits.images.reshape(-1, 64)).float() / 16
    labels = torch.from_numpy(digits.target).long()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    cut = len(images) * 4 // 5
    train, test = order[:cut], order[cut:]
    batches = [chosen for _ in range(epochs) for chosen in torch.randperm(cut, generator=generator).split(batch)]
    return Data(images[train], labels[train], images[test], labels[test], batches)


def train_strideweave(data: Data, *, seed: int, lr: float) -> Outcome:
    """The model on strideweave tensors."""
    torch.manual_seed(seed)
    model = sw.nn.Sequential(sw.nn.Linear(64, HIDDEN), sw.nn.ReLU(), sw.nn.Linear(HIDDEN, CLASSES))
    loss_of = sw.nn.CrossEntropyLoss()
    optimizer = sw.nn.AdamW(model.parameters(), lr=lr)
    batches = [(sw.from_torch(data.train_images[k]), sw.from_torch(data.train_labels[k])) for k in data.batches]
    begin = time.perf_counter()
    for images, labels in batches:
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
    train_s = time.perf_counter() - begin
    with sw.no_grad():
        answers = sw.argmax(model(sw.from_torch(data.test_images)), axis=1)
    hits = (answers.torch() == data.test_labels).float().mean().item()
    return Outcome("strideweave", hits, sw.item(loss), train_s)


def train_torch(data: Data, *, seed: int, lr: float) -> Outcome:
    """The same model in torch."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES))
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    batches = [(data.train_images[k], data.train_labels[k]) for k in data.batches]
    begin = time.perf_counter()
    for images, labels in batches:
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
    train_s = time.perf_counter() - begin
    with torch.no_grad():
        hits = (model(data.test_images).argmax(1) == data.test_labels).float().mean().item()
    return Outcome("torch", hits, loss.item(), train_s)


def main(arguments: list[str] | None = None) -> int:
    """Train both, and print how they did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training images (default 20)")
    parser.add_argument("--batch", type=int, default=64, help="images a step (default 64)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW (default 0.001)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the batches and the weights (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    asked = parser.parse_args(arguments)
    data = load(seed=asked.seed, epochs=asked.epochs, batch=asked.batch)
    ours = train_strideweave(data, seed=asked.seed, lr=asked.lr)
    theirs = train_torch(data, seed=asked.seed, lr=asked.lr)
    ratio = ours.train_s / theirs.train_s
    if asked.json:
        print(json.dumps({"strideweave": asdict(ours), "torch": asdict(theirs), "time_ratio": ratio}))
        return 0
    for outcome in (ours, theirs):
        print(
            f"{outcome.library:<12} accuracy {outcome.accuracy:7.2%}   final loss {outcome.final_loss:.6f}   "
            f"{len(data.batches)} steps in {outcome.train_s:.2f} s"
        )
    print(f"time ratio   {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
