"""Modules that do what a user's program should not, in their ninth forward of a training; those that are slow do nothing else."""

import os
import time

import torch
from torch import nn


class Fault(nn.Module):
    def __init__(self, how, notes):
        super().__init__()
        self.how, self.notes, self.forwards = how, notes, 0

    def forward(self, x):
        self.forwards += self.training and torch.is_grad_enabled()
        if self.how == "slow":
            time.sleep(0.03)
        elif self.forwards == 9:
            getattr(self, self.how)()
        return x

    def note(self, text):
        with open(self.notes, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def prints(self):
        for _ in range(400):
            print(("x" * 99 + "\n") * 1000)

    def sleeps(self):
        self.note("sleeps")
        time.sleep(100000)  # at: sleeps

    def stops(self):
        self.note("stops")
        os.kill(os.getpid(), 19)

    def raises(self):
        self.note("raises")
        raise ArithmeticError("nine")  # at: raises


def descriptors():
    """The open ones; those beyond the ones that the interpreter was given by what they are."""
    out = []
    for n in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{n}")
        except OSError:
            continue  # that of the listing
        own = "arena" if "avgpiped-arena" in file else file
        out.append(n if int(n) <= 5 else own)
    return " ".join(sorted(out))


def build(how, notes):
    fault = Fault(how, notes)
    fault.note(descriptors())
    return nn.Sequential(nn.Embedding(256, 8), fault, nn.Linear(8, 256))
