"""Modules that look at the GPU which they compute on, or meet what can go wrong there. In the dry run, on the processor, they do nothing of it."""

import os

import torch
from torch import nn


class Of(nn.Module):
    def __init__(self, on_gpu):
        super().__init__()
        self.on_gpu = on_gpu

    def forward(self, x):
        return x + self.on_gpu(x) if x.is_cuda else x + 0  # at: forgets


def visible():
    raise ValueError(repr(os.environ.get("CUDA_VISIBLE_DEVICES")))


def sees():
    raise ValueError(repr((torch.cuda.is_available(), torch.cuda.device_count())))


def locked():
    return [Of(lambda x: len(torch.cuda.cudart().locked))]


def rounds():
    return [Of(lambda x: 2 * torch.backends.cuda.matmul.allow_tf32 + torch.backends.cudnn.allow_tf32)]


def fills():
    def on_gpu(x):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    return [Of(lambda x: 0), Of(on_gpu)]


def asserts():
    def on_gpu(x):
        raise RuntimeError("CUDA error: device-side assert triggered")

    return [Of(on_gpu)]


def fails():
    def failed(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def on_gpu(x):
        torch.cuda.synchronize = failed
        failed()

    return [Of(on_gpu)]


def fails_late():
    def failed(*_):
        raise RuntimeError("CUDA error: unspecified launch failure")

    def on_gpu(x):
        torch.cuda.synchronize = failed
        return 0

    return [Of(on_gpu)]


def forgets():
    return [Of(lambda x: torch.ones(2))]


def wide(width=2048):
    return nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.Linear(width, 5))


def loss(logits, targets):
    return nn.functional.cross_entropy(logits, targets)
