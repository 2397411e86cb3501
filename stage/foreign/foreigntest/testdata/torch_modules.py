"""The modules that foreigntest asks for, of PyTorch."""

import torch
from torch import nn


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        if not self.training:
            return x
        with torch.no_grad():
            self.mean.mul_(0.5).add_(0.5 * x.mean(0))
        return x * torch.randint(0, 2, x.shape, device=x.device) * 2


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 3))
        self.scale = nn.Parameter(torch.tensor([1.5]), requires_grad=False)

    def forward(self, x):
        return self.scale * (x @ self.weight.t())


class Careful(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        if x.max() > 1e6:
            raise ValueError("too large")
        return x @ self.weight.t()


def loss(logits, targets):
    return nn.functional.nll_loss(logits, targets)


def build():
    scaled = Scaled()
    return nn.Sequential(nn.Linear(2, 3), Noise(), scaled, Careful(scaled.weight))
