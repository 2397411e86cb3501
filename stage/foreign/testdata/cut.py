"""Modules with a forward of their own, as users write them, which are cut by names."""

import math

import torch
from torch import nn
from torch.nn import functional as F


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Block(nn.Module):
    def __init__(self, inputs, outputs, dropout=0.0):
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm1d(outputs)
        self.dropout = dropout

    def forward(self, x):
        x = self.norm(self.conv(x))
        if x.sum() > 1e9:  # what is within a module may depend on values
            x = x / 2
        return F.dropout(F.relu(x, inplace=True), self.dropout, self.training)


class UNet(nn.Module):
    """A small network with skips, of sequences of 12 numbers."""

    def __init__(self, width=4, dropout=0.1):
        super().__init__()
        self.down1, self.down2 = Block(1, width), Block(width, 2 * width, dropout)
        self.mid = Block(2 * width, 4 * width, dropout)
        self.up2, self.up1 = Block(6 * width, 2 * width), Block(3 * width, width)
        self.head = nn.Linear(12 * width, 5)
        self.register_buffer("scale", torch.tensor([1.5]), persistent=False)
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        b, n = x.shape
        assert n % 4 == 0, "a multiple of four"
        one = self.down1(x.view(b, 1, n) * self.scale)
        two = self.down2(F.max_pool1d(one, 2))
        y = self.mid(F.max_pool1d(two, 2))
        y = self.up2(torch.cat([F.interpolate(y, size=two.shape[2:]), two], 1))
        y = self.up1(torch.cat([F.interpolate(y, scale_factor=2), one], 1))
        return self.head(y.view(b, -1)) + self.bias


def unet(width=4, dropout=0.1):
    return UNet(width, dropout)


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(dropout))

    def forward(self, x, mask, padding):
        h = self.first(x)
        x = x + self.attention(h, h, h, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0]
        return x + self.feed(self.second(x))


class Transformer(nn.Module):
    """A language model whose masks are made once, and live across all cuts."""

    def __init__(self, width=16, layers=3, vocabulary=11, longest=32, dropout=0.1):
        super().__init__()
        self.longest, self.width = longest, width
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, 2, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        b, t = ids.size()
        if t > self.longest:
            raise ValueError(f"{t} positions")
        positions = torch.arange(t, device=ids.device)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool, device=ids.device), diagonal=1)
        padding = (ids == 10) & (positions > 0)
        x = self.drop(self.tokens(ids) * math.sqrt(self.width) + self.positions(positions))
        for layer in self.layers:
            x = layer(x, mask, padding)
        if self.training:
            x = F.dropout(x, 0.1)
        return self.head(self.norm(x).view(b, t, self.width))


def transformer(layers=3):
    return Transformer(layers=layers)


class Branches(nn.Module):
    """Two branches, which share a layer and a parameter."""

    def __init__(self, width=8):
        super().__init__()
        self.left, self.right = nn.Linear(12, width), nn.Linear(12, width)
        self.shared = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(width))
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(2 * width, 5)

    def forward(self, x):
        left = self.drop(torch.tanh(self.left(x))) * self.gain
        right = torch.sigmoid(self.right(x))
        left, right = self.shared(left), self.shared(right)
        return self.head(torch.cat([left, right * self.gain], -1))


def branches():
    return Branches()


def sequential():
    return nn.Sequential(nn.Linear(12, 16), nn.Sequential(nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 16)), nn.Tanh(), nn.Linear(16, 5))
