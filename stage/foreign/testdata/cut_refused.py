"""Modules that cannot be cut, each behind a function. The comment at a line says which of them are to name it."""

import torch
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)


class Plain(Base):
    def __init__(self):
        super().__init__()
        self.alias = self.second
        self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh())])

    def forward(self, x):
        x = self.second(self.first(x))
        for block in self.blocks:
            x = block(x)
        return x


def plain():
    return Plain()


class Twice(Base):
    def forward(self, x):
        x = self.second(self.first(x))
        return self.second(x)  # at: twice


def twice():
    return Twice()


class ByValues(Base):
    def forward(self, x):
        x = self.first(x)
        if x.sum() > 0:  # at: by_values
            return self.second(x)
        return x


def by_values():
    return ByValues()


class BySamples(Base):
    def forward(self, x):
        for i in range(x.shape[0]):  # at: by_samples
            x = x + i
        return self.second(self.first(x))


def by_samples():
    return BySamples()


class ByNumpy(Base):
    def forward(self, x):
        x = torch.from_numpy(self.first(x).detach().numpy())  # at: by_numpy
        return self.second(x)


def by_numpy():
    return ByNumpy()


class NoGrad(Base):
    def forward(self, x):
        with torch.no_grad():
            x = self.first(x) * 2  # at: no_grad
        return self.second(x)


def no_grad():
    return NoGrad()


def of(forward):
    return type("Of", (nn.Module,), {"forward": forward})()


class WholeBatch(Base):
    def __init__(self):
        super().__init__()
        self.mean = of(lambda self, x: x.mean(0))

    def forward(self, x):
        y = self.first(x)
        mean = self.mean(y)  # at: whole_batch
        return self.second(y) + mean


def whole_batch():
    return WholeBatch()


class Double(Base):
    def __init__(self):
        super().__init__()
        self.wide = of(lambda self, x: x.double())

    def forward(self, x):
        x = self.first(x)
        wide = self.wide(x)  # at: double
        return self.second(x) + wide.float()


def double():
    return Double()


class Narrow(Base):
    """What is of another type, or not of each sample, is computed again behind the cut."""

    def forward(self, x):
        x = self.first(x)
        wide, mean, above, rows = x.double(), x.mean(0), x > 0, torch.arange(x.shape[0], dtype=torch.int32)
        return self.second(x) + wide.float() + mean + above + rows[:, None]


def narrow():
    return Narrow()


class Drawn(Base):
    def forward(self, x):
        kept = torch.ones(1, 2).bernoulli(0.5)  # at: drawn
        return self.second(self.first(x)) * kept


def drawn():
    return Drawn()


class Hooked(Base):
    def forward(self, x):  # at: hooked
        return self.second(self.first(x))


def hooked():
    module = Hooked()
    module.register_forward_hook(lambda module, inputs, output: output * 2)
    return module


def listed():  # at: listed
    return [nn.Linear(2, 2), nn.Linear(2, 2)]


class Raises(Base):
    def forward(self, x):
        raise ValueError("not today")  # at: raises


def raises():
    return Raises()


class InPlace(Base):
    def forward(self, x):  # at: in_place
        x = self.first(x)
        row = x[:, 0]
        y = self.second(x.detach().clone().requires_grad_(False)) + x
        row.mul_(2)
        return y + x


def in_place():
    return InPlace()


class Cast(Base):
    def forward(self, x):  # at: cast
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.first(x)
        return self.second(x.float())


def cast():
    return Cast()


class Sizes(Base):
    """Sizes, of samples as well, live across the cut."""

    def forward(self, x):
        b, n = x.size()
        assert n == 2
        shape, twice = x.shape, (b * 2, n // 2)
        if len(x.shape) > 2 or float(n) > 5.0:
            x = x.flatten(1)
        y = self.first(x)
        y = self.second(y)
        return y.view(twice).reshape(shape) + torch.zeros(b, n) + torch.arange(b).view(b, 1)


def sizes():
    return Sizes()
