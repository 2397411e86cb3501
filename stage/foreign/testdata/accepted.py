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


def switches_gradients_off():
    torch.set_grad_enabled(False)
    return [nn.Linear(2, 2)]


def spectral():
    return [nn.utils.spectral_norm(nn.Linear(2, 2))]


def repeats_a_module():
    act, linear = nn.ReLU(), nn.Linear(2, 2)
    return nn.Sequential(linear, act, linear, act)
