"""A GPT with dropout, as people write it."""

import torch
from torch import nn
from torch.nn import functional as F


class Embed(nn.Module):
    def __init__(self, vocabulary, positions, width, dropout):
        super().__init__()
        self.tokens, self.positions, self.drop = nn.Embedding(vocabulary, width), nn.Embedding(positions, width), nn.Dropout(dropout)

    def forward(self, ids):
        return self.drop(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))


class Block(nn.Module):
    def __init__(self, width, heads, positions, dropout):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))
        self.register_buffer("mask", torch.triu(torch.ones(positions, positions, dtype=torch.bool), 1), persistent=False)

    def forward(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return x + self.inner(self.second(x))


def build(layers, width, heads, positions, vocabulary, dropout):
    blocks = [Block(width, heads, positions, dropout) for _ in range(layers)]
    return nn.Sequential(Embed(vocabulary, positions, width, dropout), *blocks, nn.LayerNorm(width), nn.Linear(width, vocabulary))


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
