"""Models as users write them, for the benchmark of modules in Python."""

import os

os.environ.setdefault("OPENBLAS_CORETYPE", "Cooperlake")  # OpenBLAS 0.3.21 takes newer processors for a Prescott

import torch
from torch import nn
from torch.nn import functional as F


class Embed(nn.Module):
    def __init__(self, vocabulary, positions, width):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)

    def forward(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))


class Block(nn.Module):
    def __init__(self, width, heads, positions):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.triu(torch.full((positions, positions), float("-inf")), 1), persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.attend(self.first(x)).split(d, 2))
        weights = (q @ k.transpose(2, 3) / (d // self.heads) ** 0.5 + self.mask[:t, :t]).softmax(3)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.inner(self.second(x))


def gpt(layers=2, width=96, heads=4, positions=64, vocabulary=256):
    blocks = [Block(width, heads, positions) for _ in range(layers)]
    return nn.Sequential(Embed(vocabulary, positions, width), *blocks, nn.LayerNorm(width), nn.Linear(width, vocabulary))


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
