"""Samples that cannot be trained on."""

import time

import torch
from torch import nn
from torch.nn import functional as F


def build():
    return nn.Sequential(nn.Linear(2, 3))


def loss(logits, labels):
    return F.cross_entropy(logits, labels)


class Set:
    def __init__(self, count, sample):
        self.count, self.sample = count, sample

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.sample(i)


def good():
    return Set(8, lambda i: (torch.rand(2), i % 3))


def no_length():  # at: no_length
    return [0, 1].__iter__()


def empty():  # at: empty
    return []


def three():  # at: three
    return [0], [1], [2]


def number():  # at: number
    return Set(8, lambda i: torch.rand(2))


def text():  # at: text
    return Set(8, lambda i: ("a", i % 3))


def ragged():  # at: ragged
    return Set(8, lambda i: (torch.rand(2 + i), i % 3))


def raises():
    def sample(i):
        raise ValueError("sample %d is broken" % i)  # at: raises

    return Set(8, sample)


def by_the_clock():  # at: by_the_clock
    return Set(8, lambda i: (torch.full((2,), time.perf_counter() % 1), i % 3))


def split():
    return torch.utils.data.random_split(Set(8, lambda i: (torch.rand(2), i % 3)), [6, 2])


def takes_nothing():  # at: takes_nothing
    pass


def as_one(samples):  # at: as_one
    return torch.rand(2), torch.tensor(0)


def wide():
    return Set(8, lambda i: (torch.rand(5), i % 3))
