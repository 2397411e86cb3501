"""Frameworks whose tensors cannot lie in the arena."""

import contextlib
import math
import os
import traceback

from .copies import TYPES, Copy, Place, Run
from .copying_dry_run import DryRun
from .framework import Framework
from .program import Refused, message


class Copying(Framework):
    """Modules that compute with copies of what lies in the arena.

    A forward copies its inputs, and the parameters where they have changed. Gradients stay with the framework until they are gathered. A framework has

        describe      what build returned, as modules with their tensors
        own, numpy    a tensor of the framework of an array that nobody else has, and back
        compute       a forward, with a function for its backward
    """

    copies = True

    def __init__(self, *of):
        import numpy

        super().__init__(*of)
        self.numpy = numpy
        self.tensors = []  # of each module, its parameters and then its running statistics
        self.sets, self.places = {}, {}

    def describe(self, built, inputs):
        """Sets units and tensors. Inputs are examples of the first module's, as arrays."""
        raise NotImplementedError

    def own(self, array):
        raise NotImplementedError

    def array(self, tensor):
        raise NotImplementedError

    def compute(self, run):
        """Computes a Run: sets its outputs and what becomes of running statistics, and its backward where one is wanted."""
        raise NotImplementedError

    def saved(self, run):
        """The bytes that a forward keeps for its backward, parameters aside."""
        raise NotImplementedError

    def source(self, number):
        """The functions of a module that the user may have written."""
        raise NotImplementedError

    # What there is.

    def build(self, built, cut, inputs):
        if cut:
            self.refuse("model.cut cuts a module of PyTorch; expected none with this framework, where build returns a list of modules")
        if not inputs:
            raise Refused("build without inputs; expected some, which modules of this framework are made for")
        random = self.numpy.random.RandomState(0)
        self.describe(built, [self.example(t, random) for t in inputs])
        if not self.units:
            self.refuse("build returned no modules; expected at least one")
        out, met = [], {}
        for (name, unit), tensors in zip(self.units, self.tensors):
            described = {"name": name, "type": self.kind(unit), "parameters": [], "buffers": []}
            for t in tensors:
                if t.value.size == 0:
                    self.refuse(f"parameter {t.name} has no elements: shape {t.value.shape}; expected at least one")
                entry = {"name": t.name, "shape": list(t.value.shape)}
                if t.statistic:
                    described["buffers"].append(entry)
                    continue
                described["parameters"].append({**entry, "tied_to": met.get(t.same, ""), "trained": t.trained})
                if t.same is not None:
                    met.setdefault(t.same, t.name)
            out.append(described)
        return out

    def example(self, t, random):
        """An array that is made up."""
        if t["type"] == "i32":
            return random.randint(0, t["limit"] or 2, t["shape"]).astype("int32")
        return random.random_sample(t["shape"]).astype("float32")

    def checked(self, what, dtype, *callables):
        """Refuses a parameter of another type than float32."""
        if dtype != "float32":
            self.refuse(f"{what} is of {dtype}; expected float32", *callables)

    def refuse_module(self, number, text):
        self.refuse(text, *self.source(number))

    def write(self, name, at):
        for tensors in self.tensors:
            for t in tensors:
                if t.name == name:
                    self.view(at, t.value.shape, "f32")[...] = t.value
                    return
        raise Refused(f"no parameter or running statistic {name!r}; expected one that build made")

    # Memory.

    def view(self, at, shape, kind):
        """An array in the arena."""
        count = math.prod(shape)
        self.arena.check(at, 4 * count)
        dtype = {"f32": "float32", "i32": "int32"}[kind]
        if count == 0:
            return self.numpy.zeros(shape, dtype)
        return self.numpy.frombuffer(self.arena.memory, dtype, count, at).reshape(shape)

    def place(self, t, shape=None):
        """The array that a part of a request names, which is made once, however often the request is repeated."""
        view = t.get("view")
        if view is None:
            view = t["view"] = self.view(t["at"], t["shape"] if shape is None else shape, t.get("type", "f32"))
        return view

    def bind(self, request):
        places, bound = iter(request["parameters"]), []
        for tensors in self.tensors[request["first"]:request["last"]]:
            bound.append([])
            for t, (at, second) in zip(tensors, places):
                made = self.memory if t.statistic else self.copied
                bound[-1].append(Place(t, made(at, t), None if second is None else made(second, t)))
        self.sets[request["set"]] = bound

    def memory(self, at, t):
        return self.view(at, t.value.shape, "f32")

    def copied(self, at, t):
        key = at, t.value.shape
        if key not in self.places:
            self.places[key] = Copy(self.memory(at, t))
        return self.places[key]

    def current(self, copy):
        """The framework's tensor of a parameter. Forwards in flight share it until it is made anew."""
        if copy.own is None:
            copy.own = self.own(copy.value.copy())
        return copy.own

    def gather(self, name):
        for places in self.sets.get(name, ()):
            for p in places:
                if not p.tensor.statistic and p.second is not None and p.second.own is not None:
                    p.second.value += self.array(p.second.own)
                    p.second.own = None

    # Work.

    def forward(self, request):
        keep, loss = request.get("keep"), request.get("loss")
        self.drop(keep)
        bound = self.sets.get(request["set"])
        if bound is None:
            raise Refused(f"no parameters are bound as {request['set']!r}; expected a set of a bind before")
        run = Run(request["first"], request["seeds"], request["train"], keep is not None)
        parameters = [[p.value for p in places if not p.tensor.statistic] for places in bound]
        if request.get("changed"):
            for of in parameters:
                for copy in of:
                    copy.own = None
        for places, of in zip(bound, parameters):
            run.parameters.append([self.current(copy) for copy in of])
            run.trained.append([p.second is not None for p in places if not p.tensor.statistic])
            run.statistics.append([self.own((p.value if request["begins"] or p.second is None else p.second).copy()) for p in places if p.tensor.statistic])
        run.inputs = [self.own(self.place(t).copy()) for t in request["inputs"]]
        run.flows = [t["gradient"] for t in request["inputs"]]
        if loss is not None:
            if self.function is None:
                raise Refused("a forward with a loss after a build that named no function for it; expected one with a name")
            run.targets = [self.own(self.place(t).copy()) for t in loss["targets"]]
        self.compute(run)
        if loss is None:
            self.store(run, request)
        else:
            self.view(loss["at"], [], "f32")[...] = self.array(run.outputs[0])
        if request["count"]:
            for places, values in zip(bound, run.statistics):
                for p, value in zip([p for p in places if p.tensor.statistic], values):
                    p.second[...] = self.array(value)
        if keep is not None:
            self.kept[keep] = (run, request, bound)

    def store(self, run, request):
        """Copies outputs to where they are to be."""
        number = request["first"] + len(request["seeds"]) - 1
        if len(run.outputs) != len(request["outputs"]):
            self.refuse_module(number, f"module {self.called(number)} gave {len(run.outputs)} tensors; expected {len(request['outputs'])}, as in the dry run")
        for i, (y, t) in enumerate(zip(run.outputs, request["outputs"])):
            y = self.array(y)
            if list(y.shape) != t["shape"] or TYPES.get(str(y.dtype)) != t["type"]:
                self.refuse_module(number, f"output {i} of module {self.called(number)} is {y.dtype} of shape {y.shape}; expected {t['type']} of shape {tuple(t['shape'])}, as in the dry run")
            if y.dtype == "int64" and (y.min() < -(1 << 31) or y.max() >= 1 << 31):
                self.refuse_module(number, f"output {i} of module {self.called(number)} has integers from {y.min()} to {y.max()}; expected those of 32 bits")
            self.place(t)[...] = y

    def backward(self, request):
        if request["keep"] not in self.kept:
            raise Refused(f"nothing is kept as {request['keep']!r}; expected what a forward kept and no backward has used")
        run, forward, bound = self.kept.pop(request["keep"])
        if run.targets is not None:
            given = [self.own(self.numpy.array(request["weight"], "float32"))]
        else:
            given = [None if t is None else self.own(self.place(t, y.shape).copy()) for t, y in zip(request["doutputs"], map(self.array, run.outputs))]
        gradients, dinputs = [], [None] * len(run.inputs)
        if any(dy is not None for dy in given):
            gradients, dinputs = run.backward(given)
        for places, of in zip(bound, gradients):
            for p, gradient in zip([p for p in places if not p.tensor.statistic], of):
                if gradient is not None:
                    p.second.own = gradient if p.second.own is None else p.second.own + gradient
        for t, dx, x in zip(request["dinputs"], dinputs, forward["inputs"]):
            if t is not None:
                self.place(t, x["shape"])[...] = 0 if dx is None else self.array(dx)

    @contextlib.contextmanager
    def calling(self, number):
        """Names the module where its call fails before a line of the user's runs, as where it takes other arguments."""
        try:
            yield
        except TypeError as error:
            if any(self.program.owns(os.path.abspath(f.filename)) for f in traceback.extract_tb(error.__traceback__)):
                raise
            self.refuse_module(number, f"module {self.called(number)}: {message(error)}; expected that it can be called as docs/python-models.md says")

    def flatten(self, x, number, tensor):
        """What a module gave, as a list of the framework's tensors."""
        outputs = list(x) if isinstance(x, (tuple, list)) else [x]
        if not outputs:
            self.refuse_module(number, f"module {self.called(number)} gave an empty {type(x).__name__}; expected a tensor, or a tuple of them")
        for i, y in enumerate(outputs):
            if not isinstance(y, tensor):
                self.refuse_module(number, f"output {i} of module {self.called(number)} is of {type(y).__name__}; expected a tensor, or a tuple of tensors")
        return outputs

    def probe(self, request):
        return DryRun(self).run(request)
