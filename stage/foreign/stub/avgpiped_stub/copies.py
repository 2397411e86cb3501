"""What frameworks compute with whose tensors cannot lie in the arena."""

TYPES = {"float32": "f32", "int32": "i32", "int64": "i32"}  # by the name that frameworks on NumPy have: as the protocol calls them


class Tensor:
    """A parameter or a running statistic of a module, as build made it."""

    def __init__(self, name, value, trained=True, statistic=False, same=None):
        self.name, self.value = name, value  # of NumPy, of float32
        self.trained, self.statistic = trained, statistic
        self.same = same  # what two that are tied have in common; None: nothing


class Copy:
    """A tensor that lies in the arena, and the framework's own: of a parameter a copy, of a gradient what backwards added since it was gathered. All sets that
    have it at one place share it."""

    def __init__(self, value):
        self.value, self.own = value, None  # own: None until it is wanted


class Place:
    """Where a tensor of a set lies."""

    def __init__(self, tensor, value, second):
        self.tensor, self.value, self.second = tensor, value, second  # of a parameter each is a Copy, of a running statistic memory; second may be None


class Run:
    """A forward of consecutive modules: what it computes with, and what comes of it."""

    def __init__(self, first, seeds, train, keeps):
        self.first, self.seeds, self.train, self.keeps = first, seeds, train, keeps
        self.parameters, self.statistics, self.trained = [], [], []  # of each module; trained: whether a gradient is wanted
        self.inputs, self.flows = [], []  # flows: whether a gradient is wanted
        self.targets = None  # of the user's loss; None: the outputs are wanted
        self.outputs = []
        self.backward = None  # gradients of outputs, some None: those of trained parameters, of each module, and of inputs
