"""Programs that look as if they could not be used, and can."""

import time

import torch
from torch import nn


def of(forward):
    return type("Of", (nn.Module,), {"forward": forward})()


def replaces_clock():
    time.perf_counter = lambda: float("nan")
    return [nn.Linear(2, 2)]


def not_a_number():
    return nn.Sequential(nn.Linear(2, 2), of(lambda self, x: torch.log(x - 1e9) + 0 * x))


def gradient_not_a_number():
    return nn.Sequential(nn.Linear(2, 2), of(lambda self, x: torch.sqrt(x - 1e3)))


def infinite():
    return nn.Sequential(nn.Linear(2, 2), of(lambda self, x: x / 0.0))


def differentiates():
    def forward(self, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(y.square().sum(), y, create_graph=True)
        return x + slope

    return nn.Sequential(nn.Linear(2, 2), of(forward))


def computes_in_double():
    torch.set_default_dtype(torch.float64)
    return nn.Sequential(nn.Linear(2, 2).float())


def switches_gradients_off():
    torch.set_grad_enabled(False)
    return [nn.Linear(2, 2)]


def spectral():
    return [nn.utils.spectral_norm(nn.Linear(2, 2))]


def repeats_a_module():
    act, linear = nn.ReLU(), nn.Linear(2, 2)
    return nn.Sequential(linear, act, linear, act)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x) + x


def whole():
    return Whole()


class Skips(nn.Sequential):
    def forward(self, x):
        return self[0](x) + x


def skips():
    return Skips(nn.Linear(2, 2))


def frozen_in_front():
    first = nn.Linear(2, 2).requires_grad_(False)
    return [first, of(lambda self, x: x.detach()), nn.Linear(2, 2)]
