"""Trains a recurrent network to say the next word of a text, on one processor."""

import argparse
import json
import re

import torch
from torch import nn


class Layer(nn.Module):
    """An LSTM whose input is added to its output."""

    def __init__(self, width, dropout):
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.lstm(x)[0])


class WordModel(nn.Module):
    def __init__(self, words, width, layers, dropout):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, dropout) for _ in range(layers))
        self.decode = nn.Linear(width, words)

    def forward(self, ids):  # (samples, positions)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.decode(x)  # (samples, positions, words)


def read(path, vocabulary, length):
    """Samples of a text: (samples, length + 1), each with the word that follows it."""
    with open(path, encoding="utf-8") as file:
        words = re.findall(r"\w+|[^\w\s]+", file.read().lower())
    ids = [vocabulary.get(word, vocabulary["[UNK]"]) for word in words] + [vocabulary["</s>"]]
    return torch.tensor(ids).unfold(0, length + 1, length)


def loss_of(model, samples):
    logits = model(samples[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())


@torch.no_grad()
def evaluate(model, samples):
    model.eval()
    loss = sum(loss_of(model, part).item() * len(part) for part in samples.split(64)) / len(samples)
    model.train()
    return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="examples/data/brown", help="directory of train.txt, validation.txt and words.json")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="words of a sample")
    args = parser.parse_args()

    with open(f"{args.data}/words.json", encoding="utf-8") as file:
        vocabulary = json.load(file)["model"]["vocab"]
    train, held_out = (read(f"{args.data}/{part}.txt", vocabulary, args.length) for part in ("train", "validation"))

    torch.manual_seed(1)
    model = WordModel(len(vocabulary), args.width, 2, args.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.004)
    print(f"held-out loss {evaluate(model, held_out):.6f}")
    batches = iter(())
    for step in range(args.steps):
        batch = next(batches, None)
        if batch is None:  # an epoch is over
            batches = iter(torch.randperm(len(train)).split(args.batch))
            batch = next(batches)
        optimizer.zero_grad()
        loss = loss_of(model, train[batch])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    print(f"held-out loss {evaluate(model, held_out):.6f}")


if __name__ == "__main__":
    main()
