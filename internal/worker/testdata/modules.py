"""A small language model, and what a user may get wrong in one."""

import os

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix, self.drop = nn.LayerNorm(width), nn.GRU(width, width, batch_first=True), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.mix(self.norm(x))[0])


class Fails(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.forwards = how, 0

    def forward(self, x):
        self.forwards += self.training and torch.is_grad_enabled()
        if self.forwards > 5 and self.how == "raise":
            raise ValueError("five are enough")
        if self.forwards > 5 and self.how == "exit":
            os._exit(3)
        return x


class OnGPU(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        if not x.is_cuda:
            return x
        if self.how == "full":
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        if self.how == "mixed":
            return x + torch.ones(x.shape)

        def failed(*_):
            raise RuntimeError("CUDA error: unspecified launch failure")

        torch.cuda.synchronize = failed
        failed()


def on_gpu(how):
    return nn.Sequential(nn.Embedding(256, 8), OnGPU(how), nn.Linear(8, 256))


class Gone(nn.Parameter):
    """A parameter whose process ends when it is read, once a file is there."""

    file = ""

    def detach(self):
        if os.path.exists(self.file):
            os._exit(3)
        return super().detach()


def gone(file):
    Gone.file = file
    first = nn.Embedding(256, 16)
    first.weight = Gone(first.weight.data)
    return nn.Sequential(first, nn.Linear(16, 256))


def build(width=16, blocks=3):
    return nn.Sequential(nn.Embedding(256, width), *[Block(width) for _ in range(blocks)], nn.LayerNorm(width), nn.Linear(width, 256))


def tied(width=16):
    first, last = nn.Embedding(256, width), nn.Linear(width, 256, bias=False)
    last.weight = first.weight
    return nn.Sequential(first, Block(width), nn.LayerNorm(width), last)


def fails(how):
    return nn.Sequential(nn.Embedding(256, 8), Fails(how), nn.Linear(8, 256))


class Shared(nn.Module):
    """A model of its own, of which two parts have one parameter."""

    def __init__(self, width=16):
        super().__init__()
        self.tokens, self.one, self.two = nn.Embedding(256, width), Block(width), Block(width)
        self.gain, self.head = nn.Parameter(torch.ones(width)), nn.Linear(width, 256)

    def forward(self, ids):
        x = self.one(self.tokens(ids)) * self.gain
        return self.head(self.two(x) * self.gain)


def shared():
    return Shared()


class Pairs:
    """A data set of so many pairs of a few numbers and a class, with noise that is drawn."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.count == 30 and i == 29:
            raise ValueError("the last one")
        return torch.full((4,), i % 3 / 3) + 0.1 * torch.randn(4), i % 3


def pairs(count=40, held=7):
    return (Pairs(count), Pairs(held)) if held else Pairs(count)


def classes(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(width, 3))


def class_loss(logits, labels):
    return nn.functional.cross_entropy(logits, labels)


def head(width=16, classes=256):
    return nn.Sequential(nn.Dropout(0.1), nn.Linear(width, 32), nn.GELU(), nn.Linear(32, classes))


def frozen(width=16):
    first = nn.Embedding(256, width)
    with torch.no_grad():
        first.weight.copy_(torch.arange(256.0 * width).view(256, width) / (128 * width) - 1)
    first.weight.requires_grad_(False)
    return nn.Sequential(first, Block(width), nn.Linear(width, 256))
