"""A module that behaves in training, and not in evaluation."""

import os
import signal

import torch
from torch import nn


class Of(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):  # at: shape type
        if not self.training:
            if self.how == "exits":
                os._exit(4)
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "raises":
                raise ArithmeticError("no")  # at: raises
            if self.how == "shape":
                return x[:, :1]
            if self.how == "type":
                return x.double()
            while self.how == "hangs":
                pass  # at: hangs
        return x * torch.ones(1, requires_grad=True)


def vector(logits, targets):  # at: vector
    return logits


def number(logits, targets):  # at: number
    return 1.0


def double(logits, targets):  # at: double
    return logits.double().sum()


def fails(logits, targets):
    return nn.functional.nll_loss(logits, targets[:1])  # at: fails


def build(how):
    return [Of(how)]
