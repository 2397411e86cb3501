"""Modules of TensorFlow."""

import inspect
import sys

from .copies import Tensor
from .copying import Copying

RANDOM_STATE = "seed_generator_state"  # of a layer of Keras 3 that draws random numbers


class TensorFlow(Copying):
    """Layers of Keras and modules of TensorFlow 2 that compute on the processor."""

    package, returns = "tensorflow", "of TensorFlow a keras.Sequential, a list of layers or modules, or one of them"

    def __init__(self, *of):
        import tensorflow

        super().__init__(*of)
        self.tf, self.name = tensorflow, f"tensorflow {tensorflow.__version__}"
        self.variables = []  # of each module, as its tensors
        self.states = []  # of each module, the variables that its random numbers come from
        self.trains = []  # of each module, whether its call takes training

    @staticmethod
    def environment(threads):
        return {"TF_NUM_INTRAOP_THREADS": str(threads), "TF_NUM_INTEROP_THREADS": "1"}

    @staticmethod
    def begin(seed):
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None:
            try:
                tensorflow.config.set_visible_devices([], "GPU")
            except RuntimeError:
                pass  # the program has computed something
            tensorflow.random.set_seed(seed)

    @staticmethod
    def is_module(made):
        return callable(made) and hasattr(made, "trainable_variables") and not isinstance(made, type)

    @classmethod
    def made(cls, built):
        if sys.modules.get("tensorflow") is None:
            return False
        return cls.is_module(built) or isinstance(built, (list, tuple)) and any(map(cls.is_module, built))

    # What there is.

    def describe(self, built, inputs):
        if isinstance(built, (list, tuple)):
            modules = [(str(i), m) for i, m in enumerate(built)]
        elif type(built).__name__ == "Sequential" and hasattr(built, "layers"):
            modules = [(str(i), m) for i, m in enumerate(built.layers)]
        else:
            modules = [("model", built)]
        met, x = {}, [self.own(v) for v in inputs]
        for number, (name, module) in enumerate(modules):
            if not self.is_module(module):
                self.refuse(f"module {number} of what build returned is of {type(module).__name__}; expected a layer of Keras or a module of TensorFlow")
            self.units.append((name, module))
            self.trains.append(self.takes_training(module))
            self.call(number, x, False)  # makes its variables, as Keras does it
            before = self.snapshot(module)
            x = self.call(number, x, True)
            self.take(number, before, met)

    @staticmethod
    def takes_training(module):
        function = module.call if hasattr(module, "call") else type(module).__call__
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return False
        return any(p.name == "training" or p.kind == p.VAR_KEYWORD for p in parameters)

    def snapshot(self, module):
        """Variables that are not trained, and what they are."""
        return [(v, v.numpy().copy()) for v in module.non_trainable_variables]

    def take(self, number, before, met):
        """Takes the variables of a module apart. Of those that are not trained, the ones are running statistics that its call in training changed."""
        name, module = self.units[number]
        tensors, variables, states, names = [], [], [], set()
        trained = [(v, v.numpy(), True, False) for v in module.trainable_variables]
        others = [(v, value, False, not self.numpy.array_equal(value, v.numpy())) for v, value in before]
        for v, value, trains, statistic in sorted(trained + others, key=lambda each: each[3]):
            own = v.name.rpartition("/")[2].partition(":")[0] or "variable"
            if RANDOM_STATE in own:
                states.append(v)
                continue
            while own in names:
                base, _, count = own.rpartition("_")
                own = f"{base}_{int(count) + 1}" if base and count.isdigit() else f"{own}_1"
            names.add(own)
            full, what = f"{name}.{own}", "running statistic" if statistic else "parameter"
            if statistic and value.dtype != "float32" and self.numpy.array_equal(value.astype("float32").astype(value.dtype), value):
                pass  # a count
            else:
                self.checked(f"{what} {full}", str(value.dtype), *self.source(number))
            if statistic and id(v) in met:
                self.refuse_module(number, f"running statistics {met[id(v)]} and {full} are one variable; expected that each module of the list has its own")
            met.setdefault(id(v), full)
            tensors.append(Tensor(full, value.astype("float32"), trains, statistic, id(v)))
            variables.append(v)
            if statistic:
                v.assign(value)
        self.tensors.append(tensors)
        self.variables.append(variables)
        self.states.append(states)

    def source(self, number):
        kind = type(self.units[number][1])
        return getattr(kind, "call", None), kind.__call__, kind.__init__

    # Work.

    def own(self, array):
        return self.tf.constant(array)

    def array(self, tensor):
        return self.numpy.asarray(tensor)

    def call(self, number, x, train):
        given = x[0] if len(x) == 1 else list(x)
        module = self.units[number][1]
        with self.calling(number):
            y = module(given, training=train) if self.trains[number] else module(given)
        return self.flatten(y, number, self.tf.Tensor)

    def variables_of(self, number):
        """The variables of parameters of a module, and of its running statistics."""
        pairs = list(zip(self.tensors[number], self.variables[number]))
        return [v for t, v in pairs if not t.statistic], [v for t, v in pairs if t.statistic]

    def compute(self, run):
        numbers = range(run.first, run.first + len(run.seeds))
        wanted = {}  # of each variable whose gradient is wanted, where it was met first
        for number, values, flags, statistics in zip(numbers, run.parameters, run.trained, run.statistics):
            parameters, running = self.variables_of(number)
            for i, (v, value, flag) in enumerate(zip(parameters, values, flags)):
                v.assign(value)
                if flag:
                    wanted.setdefault(id(v), (v, number - run.first, i))
            for v, value in zip(running, statistics):
                v.assign(self.tf.cast(value, v.dtype))
        if not run.keeps:
            self.pass_through(run, numbers)
            return
        with self.tf.GradientTape() as tape:
            for x, flows in zip(run.inputs, run.flows):
                if flows:
                    tape.watch(x)
            self.pass_through(run, numbers)
        run.backward = lambda given: self.backward_of(run, tape, list(wanted.values()), given)

    def pass_through(self, run, numbers):
        x, statistics = run.inputs, []
        for number, seed in zip(numbers, run.seeds):
            self.tf.random.set_seed(seed)
            for state in self.states[number]:
                state.assign(self.tf.constant([seed >> 32, seed & 0xFFFFFFFF], state.dtype))
            x = self.call(number, x, run.train)
            statistics.append([self.tf.cast(self.tf.convert_to_tensor(v), "float32") for v in self.variables_of(number)[1]])
        run.outputs, run.statistics = x, statistics
        if run.targets is not None:
            run.outputs = [self.loss_of(x, run.targets)]

    def backward_of(self, run, tape, wanted, given):
        flowing = [(y, dy) for y, dy in zip(run.outputs, given) if dy is not None]
        inputs = [x for x, flows in zip(run.inputs, run.flows) if flows]
        found = tape.gradient([y for y, _ in flowing], [v for v, _, _ in wanted] + inputs, output_gradients=[dy for _, dy in flowing])
        found = [None if g is None else self.tf.convert_to_tensor(g) for g in found]  # that of an embedding has indices
        gradients = [[None] * len(of) for of in run.parameters]
        for (_, module, i), gradient in zip(wanted, found):
            gradients[module][i] = gradient
        rest = iter(found[len(wanted):])
        return gradients, [next(rest) if flows else None for flows in run.flows]

    def loss_of(self, outputs, targets):
        loss = self.function(*(x[0] if len(x) == 1 else tuple(x) for x in (outputs, targets)))
        if not isinstance(loss, self.tf.Tensor) or tuple(loss.shape) != () or loss.dtype != self.tf.float32:
            found = f"{loss.dtype.name} of shape {tuple(loss.shape)}" if isinstance(loss, self.tf.Tensor) else type(loss).__name__
            self.refuse(f"the loss function gave {found}; expected a tensor of float32 with one number, of shape ()", self.function)
        return loss

    def saved(self, run):
        """An estimate, since a tape does not say what it holds: the inputs and twice the outputs."""
        return sum(self.array(x).nbytes for x in run.inputs) + 2 * sum(self.array(y).nbytes for y in run.outputs)
