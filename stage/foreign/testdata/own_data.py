"""Models whose samples the program makes itself: sequences of different lengths, images with random crops, noise that is to be found, two inputs and two losses."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class Numbered:
    """A data set of so many samples, each made from its number."""

    def __init__(self, count, make):
        self.count, self.make = count, make

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if not 0 <= i < self.count:
            raise IndexError(i)
        return self.make(i)


# Sequences of different lengths, which an LSTM reads packed.


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(11, 8), nn.LSTM(8, 12, batch_first=True)

    def forward(self, ids, lengths):
        x, _ = self.lstm(pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False))
        x, _ = pad_packed_sequence(x, batch_first=True, total_length=9)
        return x[torch.arange(len(x)), lengths - 1]


def packed():
    return [Reader(), nn.Sequential(nn.Linear(12, 16), nn.Tanh()), nn.Dropout(0.1), nn.Linear(16, 3)]


def packed_samples():
    def make(i):
        ids = torch.tensor([(i * 7 + 3 * at) % 11 for at in range(2 + i % 8)])
        return ids, int(ids.sum()) % 3

    return Numbered(96, make), Numbered(10, lambda i: make(200 + i))


def packed_collate(samples):
    lengths = torch.tensor([len(ids) for ids, _ in samples])
    ids = pad_sequence([ids for ids, _ in samples], batch_first=True)
    return (F.pad(ids, (0, 9 - ids.shape[1])), lengths), torch.tensor([label for _, label in samples])


# Images that are shifted and turned at random, for a residual network with batch norm.


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm_b(self.b(F.relu(self.norm_a(self.a(x))))))


def residual():
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), Residual(6), Residual(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


def residual_samples(count=96):
    def make(i):
        x = torch.zeros(1, 8, 8)
        x[0, i % 4 * 2 :, : i % 4 + 2] = 1
        if random.random() < 0.5:
            x = x.flip(2)
        return torch.roll(x, int(torch.randint(-1, 2, ())), 1) + 0.1 * torch.randn(1, 8, 8), i % 4

    return Numbered(count, make)


# Noise in an image, which a U-Net with a skip finds, told how much of it there is.


class Denoiser(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.time = nn.Linear(1, width)
        self.down, self.mid = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up, self.out = nn.Conv2d(3 * width, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x, level):
        skip = F.silu(self.down(x) + self.time(level)[:, :, None, None])
        y = F.silu(self.mid(F.max_pool2d(skip, 2)))
        y = F.silu(self.up(torch.cat([F.interpolate(y, scale_factor=2), skip], 1)))
        return self.out(y)


def denoiser():
    return Denoiser()


def denoiser_samples():
    def make(i):
        clean, noise, level = torch.full((1, 8, 8), i % 5 / 5), torch.randn(1, 8, 8), torch.rand(1)
        return (clean * (1 - level) + noise * level, level), noise

    return Numbered(96, make)


def denoiser_loss(found, noise):
    return F.mse_loss(found, noise)


# Two inputs, and two outputs that are held against two targets.


class Join(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 10), nn.Embedding(7, 10)

    def forward(self, x, ids):
        return torch.tanh(self.left(x) + self.right(ids))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.number, self.kind = nn.Linear(10, 1), nn.Linear(10, 3)

    def forward(self, x):
        return self.number(x).squeeze(1), self.kind(x)


def two():
    return [Join(), nn.Linear(10, 10), nn.Dropout(0.2), Heads()]


def two_samples(scale=1.0):
    def make(i):
        x = torch.linspace(0, 1, 6) * (i % 9) / 9
        return (x, i % 7), {"number": torch.tensor(scale * (i % 9) / 9), "kind": i % 3}

    return Numbered(96, make)


def two_loss(outputs, targets):
    number, kind = outputs
    return F.mse_loss(number, targets["number"]) + F.cross_entropy(kind, targets["kind"])


# A module that writes to its inputs, which a collate function has kept.


class Doubles(nn.Module):
    def forward(self, x):
        return x.mul_(2)


def kept():
    return nn.Sequential(Doubles(), nn.Linear(2, 3))


def kept_samples():
    kept_samples.batches = {}
    return Numbered(96, lambda i: (torch.full((2,), i / 96), i % 3))


def kept_collate(samples):
    if torch.is_grad_enabled():
        raise RuntimeError("samples are made as a part of a graph")
    inputs, labels = torch.utils.data.default_collate(samples)
    return kept_samples.batches.setdefault(tuple(inputs.flatten().tolist()), inputs), labels


def loss(logits, labels):
    return F.cross_entropy(logits, labels)
