"""Modules of JAX."""

import functools
import inspect
import sys

from .copies import Run, Tensor
from .copying import Copying


class Pair:
    """A module that is a pair of functions, as in stax: init(key, shape) gives a shape and parameters, apply(parameters, inputs) the outputs."""

    def __init__(self, made):
        self.init, self.apply = made
        self.names = accepted(self.apply)

    def start(self, key, inputs):
        """The collections of variables that init makes."""
        shapes = tuple(tuple(x.shape) for x in inputs)
        made = self.init(key, shapes[0] if len(shapes) == 1 else shapes)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            return None, f"gave {type(made).__name__}; expected a pair of the output's shape and parameters, as in stax"
        return {"params": made[1]}, ""

    def run(self, variables, inputs, key, train):
        """The outputs, and what becomes of running statistics: there are none."""
        options = {"rng": key if train else None, "train": train}
        if not train:
            del options["rng"]  # so that nothing draws
        given = {name: value for name, value in options.items() if name in self.names or None in self.names}
        return self.apply(variables["params"], inputs[0] if len(inputs) == 1 else tuple(inputs), **given), {}

    @property
    def functions(self):
        return self.apply, self.init

    @property
    def type(self):
        return getattr(self.apply, "__qualname__", type(self.apply).__name__).partition(".<locals>")[0]


class Object:
    """A module that is an object with init and apply, as in flax: init(key, *inputs) gives collections of variables."""

    STATISTICS = "batch_stats"

    def __init__(self, made):
        self.made = made
        call = getattr(type(made), "__call__", None)  # of flax: init and apply hand on to it what they do not know
        self.names = accepted(functools.partial(call, made), keywords=False) if inspect.isfunction(call) else set()

    def training(self, function, train):
        """How a function of the module is told whether it trains."""
        options = {"train": train, "training": train, "deterministic": not train}
        return {name: value for name, value in options.items() if name in self.names | accepted(function, keywords=False)}

    def start(self, key, inputs):
        made = self.made.init(key, *inputs, **self.training(self.made.init, False))
        if not hasattr(made, "items"):
            return None, f"gave {type(made).__name__}; expected a dictionary of collections of variables, as {{'params': ...}}, as in flax"
        return {name: value for name, value in made.items()}, ""

    def run(self, variables, inputs, key, train):
        options = self.training(self.made.apply, train)
        if train:
            options["rngs"] = {"dropout": key}
        if not train or self.STATISTICS not in variables:
            return self.made.apply(variables, *inputs, **options), {}
        y, changed = self.made.apply(variables, *inputs, mutable=[self.STATISTICS], **options)
        return y, changed

    @property
    def functions(self):
        return getattr(type(self.made), "__call__", None), type(self.made).apply, type(self.made).init

    @property
    def type(self):
        return type(self.made).__name__


def accepted(function, keywords=True):
    """The names of what a function may be given by name; None among them: any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return names | ({None} if keywords and any(p.kind == p.VAR_KEYWORD for p in parameters) else set())


def module_of(made):
    """A Pair or an Object; None: it is neither."""
    if isinstance(made, tuple):
        is_pair = len(made) == 2 and all(callable(f) and not hasattr(f, "apply") for f in made) and not hasattr(made, "init")
        return Pair(made) if is_pair else None
    if callable(getattr(made, "init", None)) and callable(getattr(made, "apply", None)) and not isinstance(made, type):
        return Object(made)
    return None


class Jax(Copying):
    """Modules of JAX, 0.4.6 or newer, that compute on the processor."""

    package, returns = "jax", "of JAX a list of pairs (init, apply) or of objects with init and apply, or one of them"

    def __init__(self, *of):
        import jax

        super().__init__(*of)
        self.jax, self.name = jax, f"jax {jax.__version__}"
        self.trees = []  # of each module, by collection: how many leaves it has, and what they make up
        self.compiled = {}  # by module and whether it trains
        self.compiled_loss = None if self.function is None else jax.jit(self.function)

    @staticmethod
    def environment(threads):
        return {"JAX_PLATFORMS": "cpu"}

    @staticmethod
    def begin(seed):
        pass  # keys are made of the seed

    @staticmethod
    def made(built):
        if sys.modules.get("jax") is None:
            return False
        return module_of(built) is not None or isinstance(built, (tuple, list)) and any(module_of(m) is not None for m in built)

    def key(self, seed):
        """A key of 64 bits, of which PRNGKey may take 32."""
        random, half = self.jax.random, self.numpy.uint32
        return random.fold_in(random.fold_in(random.PRNGKey(0), half(seed >> 32)), half(seed & 0xFFFFFFFF))

    # What there is.

    def describe(self, built, inputs):
        whole = module_of(built)
        all_made = [built] if whole is not None else list(built)
        key, met = self.key(self.build_seed), {}
        x = [self.own(v) for v in inputs]
        for number, made in enumerate(all_made):
            module = module_of(made)
            if module is None:
                self.refuse(f"module {number} of what build returned is {self.found(made)}; expected a pair (init, apply) of functions, or an object with init and apply")
            self.units.append((str(number) if whole is None else "model", module))
            key, own = self.jax.random.split(key)
            with self.calling(number):
                variables, wrong = module.start(own, x)
            if variables is None:
                self.refuse_module(number, f"init of module {self.called(number)} {wrong}")
            self.take(number, variables, met)
            run = self.run_of(number)
            run.inputs, run.flows = x, [False] * len(x)
            self.compute(run)
            x = run.outputs

    @staticmethod
    def found(made):
        if isinstance(made, (tuple, list)):
            return f"a {type(made).__name__} of {', '.join(type(m).__name__ for m in made) or 'nothing'}"
        return f"of {type(made).__name__}"

    def run_of(self, number):
        """A forward of a module with the values of build, in training."""
        run = Run(number, [self.build_seed], True, False)
        values = self.tensors[number]
        run.parameters = [[self.own(t.value) for t in values if not t.statistic]]
        run.trained = [[False] * len(run.parameters[0])]
        run.statistics = [[self.own(t.value) for t in values if t.statistic]]
        return run

    def take(self, number, variables, met):
        """Takes the variables of a module apart."""
        tree, (name, module) = self.jax.tree_util, self.units[number]
        statistics, parameters, trees = [], [], []
        for collection in sorted(variables, key=lambda name: (name != "params", name)):
            leaves, shape = tree.tree_flatten_with_path(variables[collection])
            trees.append((collection, len(leaves), shape))
            for path, leaf in leaves:
                parts = [name] + ([] if collection == "params" else [collection]) + [part(p) for p in path]
                full, what = ".".join(parts), "running statistic" if collection == Object.STATISTICS else "parameter"
                if not isinstance(leaf, (self.jax.Array, self.numpy.ndarray)):
                    self.refuse_module(number, f"{what} {full} is of {type(leaf).__name__}; expected an array of float32, as of jnp.float32")
                self.checked(f"{what} {full}", str(leaf.dtype), *self.source(number))
                if id(leaf) in met and met[id(leaf)][0] == number:
                    self.refuse_module(number, f"parameters {met[id(leaf)][1]} and {full} are one array; expected an array for each, as of jnp.array(values)")
                met.setdefault(id(leaf), (number, full, leaf))
                made = Tensor(full, self.numpy.array(leaf, "float32"), collection == "params", collection == Object.STATISTICS, id(leaf))
                (statistics if made.statistic else parameters).append(made)
        self.tensors.append(parameters + statistics)
        self.trees.append(trees)
        self.met = met  # so that no other leaf has the identity of one of them

    def source(self, number):
        return self.units[number][1].functions

    def kind(self, unit):
        return unit.type

    # Work.

    def own(self, array):
        return self.jax.numpy.asarray(array)

    def array(self, tensor):
        return self.numpy.asarray(tensor)

    def call(self, number, train, parameters, statistics, inputs, key):
        """A module as a function of arrays: its outputs, and what becomes of its running statistics."""
        variables, rest = {}, {False: list(parameters), True: list(statistics)}
        for collection, count, shape in self.trees[number]:
            of = rest[collection == Object.STATISTICS]
            variables[collection] = self.jax.tree_util.tree_unflatten(shape, of[:count])
            del of[:count]
        with self.calling(number):
            y, changed = self.units[number][1].run(variables, inputs, key, train)
        outputs = self.flatten(y, number, self.jax.Array)
        after = self.jax.tree_util.tree_leaves(changed[Object.STATISTICS]) if Object.STATISTICS in changed else list(statistics)
        if [v.shape for v in after] != [v.shape for v in statistics]:
            self.refuse_module(number, f"the forward of module {self.called(number)} gave running statistics of shapes {[tuple(v.shape) for v in after]}; expected {[tuple(v.shape) for v in statistics]}")
        return tuple(outputs), tuple(after)

    def compute(self, run):
        jax, numbers = self.jax, range(run.first, run.first + len(run.seeds))
        keys = [self.key(seed) for seed in run.seeds]
        for number in numbers:
            if (number, run.train) not in self.compiled:
                self.compiled[number, run.train] = jax.jit(functools.partial(self.call, number, run.train))
        trained = tuple(tuple(p for p, wanted in zip(of, flags) if wanted) for of, flags in zip(run.parameters, run.trained))
        flowing = tuple(x for x, flows in zip(run.inputs, run.flows) if flows)

        def function(trained, flowing):
            flowing, statistics = iter(flowing), []
            x = tuple(next(flowing) if flows else x for x, flows in zip(run.inputs, run.flows))
            for number, own, parameters, flags, before, key in zip(numbers, trained, run.parameters, run.trained, run.statistics, keys):
                own = iter(own)
                parameters = tuple(next(own) if flag else p for p, flag in zip(parameters, flags))
                x, after = self.compiled[number, run.train](parameters, tuple(before), x, key)
                statistics.append(after)
            if run.targets is not None:
                x = (self.loss_of(x, run.targets),)
            return tuple(y for y in x if self.floats(y)), (x, statistics)

        if not run.keeps:
            _, (run.outputs, run.statistics) = function(trained, flowing)
            return
        _, run.pull, (run.outputs, run.statistics) = jax.vjp(function, trained, flowing, has_aux=True)
        run.backward = lambda given: self.backward_of(run, given)

    @staticmethod
    def floats(y):
        return str(y.dtype) == "float32"

    def backward_of(self, run, given):
        zeros = self.jax.numpy.zeros
        cotangents = tuple(zeros(y.shape, "float32") if dy is None else dy for y, dy in zip(run.outputs, given) if self.floats(y))
        trained, flowing = run.pull(cotangents)
        gradients = []
        for own, flags in zip(trained, run.trained):
            own = iter(own)
            gradients.append([next(own) if flag else None for flag in flags])
        flowing = iter(flowing)
        return gradients, [next(flowing) if flows else None for flows in run.flows]

    def loss_of(self, outputs, targets):
        loss = self.compiled_loss(*(x[0] if len(x) == 1 else tuple(x) for x in (outputs, targets)))
        if not isinstance(loss, self.jax.Array) or loss.shape != () or not self.floats(loss):
            found = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, self.jax.Array) else type(loss).__name__
            self.refuse(f"the loss function gave {found}; expected an array of float32 with one number, of shape ()", self.function)
        return loss

    def saved(self, run):
        """What the function for the backward holds: it is a tree of arrays."""
        own = {id(p) for of in run.parameters for p in of}
        return sum(x.nbytes for x in self.jax.tree_util.tree_leaves(run.pull) if isinstance(x, self.jax.Array) and id(x) not in own)


def part(path):
    """A key of a path in a tree, as names of tensors have it."""
    for attribute in ("key", "idx", "name"):
        if hasattr(path, attribute):
            return str(getattr(path, attribute))
    return str(path)
