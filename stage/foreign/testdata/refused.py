"""Programs that cannot be used, each a function. The comment at a line says which of them are to name it."""

import sys

import torch
from torch import nn


class Weird(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raises():
    width = {}
    return nn.Linear(2, width["width"])  # at: raises


def raises_weird():
    raise Weird  # at: raises_weird


def raises_long():
    raise ValueError("x" * (10 << 20))  # at: raises_long


def raises_deep():
    return raises_deep()  # at: raises_deep


def exits():
    sys.exit(3)  # at: exits


def interrupts():
    raise KeyboardInterrupt  # at: interrupts


def reads():
    return input()  # at: reads


def shrinks():
    import os

    os.ftruncate(4, 0)  # at: shrinks


def number():  # at: number
    return 3


def empty():  # at: empty
    return []


def mixed():  # at: mixed
    return [nn.Linear(2, 2), 3]


def scripted():  # at: scripted
    return [torch.jit.script(nn.Linear(2, 2))]


def no_modules():  # at: no_modules
    return nn.Sequential()


def of(forward):
    """A module that computes so."""
    return type("Of", (nn.Module,), {"forward": forward})()


def one(forward):
    return nn.Sequential(nn.Linear(2, 2), of(forward))


def gives_dict():
    def forward(self, x):  # at: gives_dict
        return {"x": x}

    return one(forward)


def gives_nothing():
    def forward(self, x):  # at: gives_nothing
        return ()

    return one(forward)


def gives_sparse():
    def forward(self, x):  # at: gives_sparse
        return x.to_sparse()

    return one(forward)


def gives_double():
    def forward(self, x):  # at: gives_double
        return x.double()

    return one(forward)


def gives_half():
    def forward(self, x):  # at: gives_half
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.new_ones(2, 2)

    return one(forward)


def gives_none_of_samples():
    def forward(self, x):
        return x.sum()

    return one(forward)


def gives_no_elements():
    def forward(self, x):  # at: gives_no_elements
        return x[:, :0]

    return one(forward)


def gives_no_gradient():
    def forward(self, x):  # at: gives_no_gradient
        return x.detach()

    return one(forward)


def detaches():
    def forward(self, x):  # at: detaches
        return x.detach() @ self.weight

    module = of(forward)
    module.weight = nn.Parameter(torch.ones(2, 2))
    return [nn.Linear(2, 2), module, nn.Linear(2, 2)]


class Remembers(nn.Linear):
    def forward(self, x):
        self.seen = super().forward(x)
        return self.seen


def reads_another():
    first = Remembers(2, 2)

    def forward(self, x):  # at: reads_another
        return x + first.seen

    return [first, nn.Linear(2, 2), of(forward)]


def reads_what_was():
    first = Remembers(2, 2)

    def forward(self, x):  # at: reads_what_was
        return x + first.seen.detach()

    return [first, nn.Linear(2, 2), of(forward)]


def no_number(logits, targets):  # at: no_number
    return logits


def no_gradient(logits, targets):  # at: no_gradient
    return logits.detach().sum()


CENTERS = nn.Parameter(torch.zeros(2))
MODEL = nn.Linear(2, 2)


def has_parameters(logits, targets):  # at: has_parameters
    return (logits - CENTERS).square().mean()


def weighs_the_model(logits, targets):  # at: weighs_the_model
    return nn.functional.cross_entropy(logits, targets) + MODEL.weight.square().sum()


def adds_up(logits, targets):  # at: adds_up
    return nn.functional.cross_entropy(logits, targets, reduction="sum")


def of_the_file():
    return MODEL


def of_logits(logits):  # at: of_logits
    return logits.sum()


def wrong_shape(logits, targets):
    return nn.functional.cross_entropy(logits, targets.view(-1, 3))  # at: wrong_shape


def fine():
    return [nn.Linear(2, 2)]


def forward_raises():
    def forward(self, x):
        return x @ x  # at: forward_raises

    return one(forward)


def without_cuda():
    torch.version.cuda = None  # as in Debian's PyTorch
    return one(lambda self, x: x)


def library_raises():  # at: library_raises
    return [nn.Linear(2, 3), nn.Linear(2, 3)]


def takes_one_tensor():  # at: takes_one_tensor
    return nn.Sequential(of(lambda self, x: (x, x)), nn.Linear(2, 3))


def backward_raises():
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return 2 * x

        @staticmethod
        def backward(_, dy):
            raise ValueError("no gradient today")  # at: backward_raises

    return one(lambda self, x: Doubles.apply(x))


def unregistered():
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]

    def forward(self, x):  # at: unregistered
        for layer in layers:
            x = layer(x)
        return x

    return one(forward)


def shape_changes():
    def forward(self, x):  # at: shape_changes
        self.calls = getattr(self, "calls", 0) + 1
        return x[:, : self.calls]

    return one(forward)


def count_changes():
    def forward(self, x):  # at: count_changes
        self.calls = getattr(self, "calls", 0) + 1
        return tuple([x] * (1 + self.calls))

    return one(forward)


def hidden_state():
    def forward(self, x):  # at: hidden_state
        self.calls = getattr(self, "calls", 0) + 1
        return x * self.calls

    return one(forward)


def strided():  # at: strided
    m = nn.Linear(2, 3)
    m.weight = nn.Parameter(torch.zeros(2, 3).t())
    return [m]


def shared():  # at: shared
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight = nn.Parameter(a.weight.data)
    return [a, b]


def shared_statistic():  # at: shared_statistic
    norm = nn.BatchNorm1d(2)
    return nn.Sequential(norm, nn.Linear(2, 2), norm)


def double():  # at: double
    return [nn.Linear(2, 2).double()]


def half():  # at: half
    return [nn.Linear(2, 2).to(torch.bfloat16)]


def lazy():  # at: lazy
    return [nn.LazyLinear(2)]


def no_elements():  # at: no_elements
    return [nn.Linear(2, 0)]


def wide_statistic():  # at: wide_statistic
    m = nn.Linear(2, 2)
    m.register_buffer("big", torch.tensor([(1 << 40) + 1]))
    return [m]


class Changes(nn.Linear):
    def __init__(self, how):
        super().__init__(2, 2)
        self.how = how

    def forward(self, x):  # at: changes_in_place changes_data replaces makes
        if self.how == "in place":
            with torch.no_grad():
                self.weight.mul_(0.9)
        if self.how == "data":
            self.weight.data *= 0.9
        if self.how == "replaces":
            self.weight = nn.Parameter(self.weight * 0.9)
        if self.how == "makes":
            self.scale = nn.Parameter(torch.ones(2))
        return super().forward(x)


def changes_in_place():
    return [Changes("in place")]


def changes_data():
    return [Changes("data")]


def replaces():
    return [Changes("replaces")]


def makes():
    return [Changes("makes")]


class Hides(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.all = [self.weight, self.bias]

    def forward(self, x):  # at: hides
        return nn.functional.linear(x, *self.all)


def hides():
    return [Hides()]


def borrows():
    first = nn.Linear(2, 2)

    def forward(self, x):  # at: borrows
        return x @ first.weight

    return [first, of(forward)]
