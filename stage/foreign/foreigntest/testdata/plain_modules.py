"""The modules that foreigntest asks for, of the framework in plain_stub.py."""

from plain import Linear, Module, Tensor


class Noise(Module):
    def __init__(self):
        self.parameters, self.statistics = {}, {"mean": Tensor([3], [0.0] * 3)}

    def forward(self, x, values, random, train):
        if not train:
            return x, lambda dy: (dy, {})
        mean = values["mean"]
        values["mean"] = [m / 2 + sum(row[i] for row in x) / len(x) / 2 for i, m in enumerate(mean)]
        mask = [[2.0 * random.randint(0, 1) for _ in row] for row in x]
        by = lambda rows: [[a * b for a, b in zip(row, m)] for row, m in zip(rows, mask)]
        return by(x), lambda dy: (by(dy), {})


class Careful(Linear):
    def forward(self, x, values, random, train):
        if max(max(row) for row in x) > 1e6:
            raise ValueError("too large")
        return super().forward(x, values, random, train)


def loss(logits, targets):
    """The loss and its gradient."""
    n = len(targets)
    return -sum(row[t] for row, t in zip(logits, targets)) / n, [[-(i == t) / n for i in range(len(row))] for row, t in zip(logits, targets)]


def build(random):
    number = lambda: random.uniform(-1, 1)
    v = Tensor([3, 3], [number() for _ in range(9)])
    return [
        Linear({"weight": Tensor([3, 2], [number() for _ in range(6)]), "bias": Tensor([3], [number() for _ in range(3)])}),
        Noise(),
        Linear({"weight": v, "scale": Tensor([1], [1.5], trained=False)}),
        Careful({"weight": v}),
    ]
