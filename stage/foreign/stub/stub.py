"""Computes modules of a user's framework for a worker of avgpiped, which starts this file in the user's interpreter.

    python3 stub.py SOCKET ARENA BYTES

SOCKET is the descriptor of a stream, ARENA that of BYTES of memory that both processes map. Each message is a length of 4 bytes, the lowest
first, and so many bytes of JSON; tensors are places in the arena. The worker asks and this file answers, one request at a time.
docs/worker-protocol.md says what requests mean.

It takes nothing but Python's standard library and the framework that the user's program imports.
"""

import bisect
import contextlib
import difflib
import faulthandler
import functools
import importlib.util
import inspect
import itertools
import json
import mmap
import operator
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from operator import attrgetter, is_
from time import perf_counter, sleep  # a program may replace those of the module

VERSION = 2
LONGEST_MESSAGE = 16 << 20
LONGEST_TEXT = 8 << 10  # of what an error says
MOST_FRAMES = 100
STUB = 5  # the descriptor of this file, the last that the worker gives
SOCKET_CLOSED = 70  # the exit status that says so
NUMBER = struct.Struct("=f")
PARAMETERS, WRITES = attrgetter("_parameters"), attrgetter("_version")


class Refused(Exception):
    """What the user's program or the worker gave cannot be used. The text says what was found and what was expected."""

    def __init__(self, text, at=("", 0)):
        super().__init__(text)
        self.at = at  # file and line of what was refused


class Program:
    """The user's program: which files are his, and where what he wrote stands."""

    def __init__(self, path):
        self.path, self.build = path, None
        self.directory = os.path.join(os.path.dirname(os.path.abspath(path)), "")

    def owns(self, file):
        """Reports whether the user wrote a file: it lies beside the program, and in no installed package."""
        return file.startswith(self.directory) and "<frozen " not in file and "site-packages" not in file and "dist-packages" not in file

    def at(self, *callables):
        """File and line of the first of the functions that the user wrote."""
        for call in callables + (self.build,):
            code = getattr(call, "__code__", None)
            if code is not None and self.owns(code.co_filename):
                return code.co_filename, code.co_firstlineno
        return "", 0


class Arena:
    """The memory that both processes map."""

    def __init__(self, descriptor, size):
        self.memory = mmap.mmap(descriptor, size)
        self.size = size

    def check(self, at, size):
        """Refuses a place that does not lie in the arena."""
        if not isinstance(at, int) or at < 0 or at % 4 or at + size > self.size:
            raise Refused(f"a tensor of {size} bytes at {at!r}: expected a multiple of 4 within {self.size} bytes")


# ---- PyTorch ----------------------------------------------------------------------------------------------------


class Torch:
    """Modules of PyTorch, 1.13 or newer, that compute on the processor."""

    package = "torch"

    def __init__(self, arena, threads, program):
        import torch

        self.torch, self.arena, self.program = torch, arena, program
        self.name = f"torch {torch.__version__}"
        torch.set_num_threads(threads)
        self.function = None  # the user's loss
        self.types = {"f32": torch.float32, "i32": torch.int32}
        self.names = {torch.float32: "f32", torch.int64: "i32", torch.int32: "i32"}
        self.units = []  # (name, module), in the order in which they run
        self.whole = None  # the one module that build returned, of which the units are parts
        self.owners = {}  # by name of a parameter or a running statistic: the unit that has it under this name
        self.spread = False  # a tuple goes to a module as several arguments
        self.parameters = {}  # by name: (module, name in it, value)
        self.buffers = {}  # the same, of running statistics
        self.sets, self.current = {}, None
        self.kept = {}  # by name: what a backward needs

    @staticmethod
    def made(built):
        """Reports whether build returned modules of PyTorch."""
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        return isinstance(built, torch.nn.Module) or isinstance(built, (list, tuple)) and any(isinstance(m, torch.nn.Module) for m in built)

    @staticmethod
    def begin(seed):
        """Is called before build."""
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed)

    # What there is.

    def build(self, built, cut, inputs):
        """Takes what build returned apart: into the modules of a Sequential or of a list, or one module where it is to be cut."""
        nn = self.torch.nn
        if isinstance(built, nn.Module) and (cut or not isinstance(built, (nn.Sequential, nn.ModuleList)) or isinstance(built, nn.Sequential) and type(built).forward is not nn.Sequential.forward):
            self.whole = built
        self.spread = self.whole is not None or not isinstance(built, nn.Sequential)
        self.units = self.units_of(built, cut, inputs)
        self.flags = [[(m, m.training) for m in unit.modules()] for _, unit in self.units]
        self.trains = [True] * len(self.units)
        out = [self.describe(name, unit) for name, unit in self.units]
        self.sets[None] = {
            "parameters": [(full, module, own, p, None, p._version) for full, (module, own, p) in self.parameters.items()],
            "buffers": [], "recurrent": [m for _, unit in self.units for m in unit.modules() if isinstance(m, self.torch.nn.RNNBase)],
        }  # as build made them
        return out

    def units_of(self, built, cut, inputs):
        nn = self.torch.nn
        kind = type(built)
        if self.whole is not None:
            self.check_module("what build returned", built)
            for full, x in [*built.named_parameters(), *built.named_buffers()]:
                self.check_tensor(full, x)
            if not cut:
                return [("model", built)]
            examples = [[self.example({**t, "shape": [n] + t["shape"][1:]}) for t in inputs] for n in Cutter.COUNTS]
            units = Cutter(self.torch, self.program, built, examples).cut(cut)
        elif cut:
            self.refuse(f"model.cut says where one module is cut, and build returned a {kind.__name__} of modules; remove model.cut, or return one module")
        elif isinstance(built, (nn.Sequential, nn.ModuleList)):
            if any(built.__dict__.get(hooks) for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")):
                self.refuse(f"build returned a {kind.__name__} with hooks, which would not run; expected hooks on its modules only")
            if built._parameters or built._buffers:
                self.refuse(f"build returned a {kind.__name__} with parameters or buffers of its own; expected that all are those of its modules")
            units = list(built._modules.items())  # named_children leaves out what it met before
        else:
            units = [(str(i), m) for i, m in enumerate(built)]
        if not units:
            self.refuse(f"build returned a {kind.__name__} without modules; expected at least one")
        for name, unit in units:
            self.check_module(f"module {name} of what build returned", unit)
        return units

    def check_module(self, what, unit):
        if not isinstance(unit, self.torch.nn.Module):
            self.refuse(f"{what} is of {type(unit).__name__}; expected a module of PyTorch")
        if any(isinstance(m, self.torch.jit.ScriptModule) for m in unit.modules()):
            self.refuse(f"{what} is compiled by TorchScript; expected the module that it was compiled from")

    def refuse(self, text, *callables):
        """Refuses what the first of functions is about that the user wrote; build, unless he wrote any."""
        raise Refused(text, self.program.at(*callables))

    def refuse_module(self, number, text):
        self.refuse(text, type(self.units[number][1] if self.whole is None else self.whole).forward)

    def describe(self, name, unit):
        out = {"name": name, "type": self.kind(unit), "parameters": [], "buffers": []}
        for full, module, own, p in self.tensors(name, unit, "_parameters"):
            out["parameters"].append(self.describe_parameter(full, p))
            self.parameters[full] = (module, own, p)
        before = {id(b): other for other, (_, _, b) in self.buffers.items()}
        for full, module, own, b in self.tensors(name, unit, "_buffers"):
            if own not in module._non_persistent_buffers_set:
                if id(b) in before:
                    self.refuse(f"running statistics {before[id(b)]} and {full} are one tensor; expected that each module of the list has its own")
                self.check_buffer(full, b)
                self.buffers[full] = (module, own, b)
                out["buffers"].append({"name": full, "shape": list(b.shape)})
        return out

    def tensors(self, name, unit, kind):
        """The tensors of a kind of a module and of those within, also those that were met before: (name, module, name in it, tensor)."""
        for path, module in unit.named_modules(remove_duplicate=False):
            for own, tensor in getattr(module, kind).items():
                if tensor is not None:
                    yield self.full(name, path, own), module, own, tensor

    def full(self, name, path, own):
        """The name of a tensor of a unit, as the whole has it. Where another unit has it too, the unit stands behind it, and files are without it."""
        full = ".".join(filter(None, (name if self.whole is None else "", path, own)))
        return full if self.owners.setdefault(full, name) == name else f"{full}@{name}"

    def check_tensor(self, what, x):
        if self.torch.nn.parameter.is_lazy(x):
            self.refuse(f"{what} has no shape yet; expected that build makes modules whose sizes are given")
        if x.device.type != "cpu" or x.layout != self.torch.strided:
            self.refuse(f"{what} is on {x.device} and of layout {x.layout}; expected a dense tensor of the processor")
        if x.numel() == 0:
            self.refuse(f"{what} has no elements: shape {tuple(x.shape)}; expected at least one")

    def check_buffer(self, full, b):
        """Refuses a running statistic that cannot be averaged as numbers of float32."""
        self.check_tensor(f"running statistic {full}", b)
        if b.is_complex() or not self.same(b.to(self.torch.float32).to(b.dtype), b):
            self.refuse(f"running statistic {full} is of {b.dtype} and has values that torch.float32 has not; expected torch.float32, or persistent=False where it never changes")

    def describe_parameter(self, full, p):
        self.check_tensor(f"parameter {full}", p)
        if p.dtype != self.torch.float32:
            self.refuse(f"parameter {full} is of {p.dtype}; expected torch.float32, as of module.float()")
        if not p.is_contiguous():
            self.refuse(f"parameter {full} is not contiguous: shape {tuple(p.shape)}, strides {tuple(p.stride())}; expected nn.Parameter(values.contiguous())")
        tied, begin, end = "", p.data_ptr(), p.data_ptr() + 4 * p.numel()
        for other, (_, _, q) in self.parameters.items():
            if q is p:
                tied = tied or other
            elif begin < q.data_ptr() + 4 * q.numel() and q.data_ptr() < end:
                self.refuse(f"parameters {other} and {full} share memory; expected memory of their own, or one nn.Parameter in both places")
        return {"name": full, "shape": list(p.shape), "tied_to": tied, "trained": p.requires_grad}

    def same(self, a, b):
        """Reports whether tensors have the same values, of which some may be no numbers."""
        return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())

    def write(self, name, at):
        """Writes what a parameter or a running statistic is after build to the arena."""
        found = self.parameters.get(name) or self.buffers.get(name)
        if found is None:
            raise Refused(f"no parameter or running statistic {name!r}; expected one that build made")
        value = found[2].detach()
        self.view(at, list(value.shape), "f32").copy_(value)

    # Memory.

    def view(self, at, shape, kind):
        """A tensor in the arena. Each has a storage of its own, so that PyTorch knows writes to it from writes to others."""
        count = 1
        for n in shape:
            count *= n
        self.arena.check(at, 4 * count)
        if count == 0:
            return self.torch.zeros(shape, dtype=self.types[kind])
        return self.torch.frombuffer(self.arena.memory, dtype=self.types[kind], count=count, offset=at).view(shape)

    def bind(self, request):
        """Notes where parameters of consecutive modules lie, and their gradients: a set to compute with."""
        bound = {"parameters": [], "buffers": [], "recurrent": []}
        made = {}  # one for all that is tied: its gradients are added as in a plain program, all to the place of the first
        places = iter(request["parameters"])
        for number in range(request["first"], request["last"]):
            name, unit = self.units[number]
            for full, module, own, original in self.originals(name, unit, self.parameters):
                at, gradient = next(places)
                if original not in made:
                    made[original] = self.parameter(original, at, gradient)
                bound["parameters"].append((full, module, own) + made[original])
            for full, module, own, original in self.originals(name, unit, self.buffers):
                at, total = next(places)
                shape = list(original.shape)
                bound["buffers"].append((module, own, self.view(at, shape, "f32"), None if total is None else self.view(total, shape, "f32")))
            bound["recurrent"] += [m for m in unit.modules() if isinstance(m, self.torch.nn.RNNBase)]
        self.sets[request["set"]] = bound
        self.current = None

    def originals(self, name, unit, of):
        """The tensors of a module as build made them."""
        for path, module in unit.named_modules(remove_duplicate=False):
            for own in list(module._parameters) + list(module._buffers):
                full = self.full(name, path, own)
                if full in of:
                    yield (full,) + of[full]

    def parameter(self, original, at, gradient):
        shape = list(original.shape)
        p = self.torch.nn.Parameter(self.view(at, shape, "f32"), requires_grad=gradient is not None)
        if gradient is not None:
            p.grad = self.view(gradient, shape, "f32")
        return p, p.grad, p._version

    def use(self, name):
        """Has the modules compute with a set; None: with what build made."""
        bound = self.sets.get(name)
        if bound is None:
            raise Refused(f"no parameters are bound as {name!r}; expected a set of a bind before")
        if self.current != name:
            self.install(bound)
            self.current = name
        return bound

    @staticmethod
    def install(bound):
        for _, module, own, p, _, _ in bound["parameters"]:
            module._parameters[own] = p
        for module in bound["recurrent"]:
            module._flat_weights = [getattr(module, own, None) for own in module._flat_weights_names]

    # Work.

    def forward(self, request):
        """Runs consecutive modules. With "keep" their backward follows."""
        keep, bound, loss = request.get("keep"), self.use(request["set"]), request.get("loss")
        self.drop(keep)
        with self.torch.set_grad_enabled(keep is not None):
            leaves, given = self.arguments(request["inputs"], keep is not None)
            outputs = self.run(request, bound, given)
            if loss is None:
                self.store(outputs, request)
            else:
                outputs = [self.loss(outputs, loss)]
        if keep is not None:
            self.kept[keep] = (request["set"], leaves, outputs, request)

    def arguments(self, inputs, backward):
        """What the modules get: copies, so that they may write to them while the inputs may change; and those whose gradient may be wanted."""
        leaves, given = [], []
        for t in inputs:
            x, leaf = self.place(t), None
            if backward and t["gradient"]:
                x = leaf = x.detach().requires_grad_()
            leaves.append(leaf)
            given.append(x.long() if t["type"] == "i32" else x.clone())
        return leaves, given

    def place(self, t, shape=None):
        """The tensor that a part of a request names, which is made once, however often the request is repeated."""
        view = t.get("view")
        if view is None:
            view = t["view"] = self.view(t["at"], t["shape"] if shape is None else shape, t.get("type", "f32"))
        return view

    def run(self, request, bound, inputs):
        train, tensor, seed_next = request["train"], self.torch.Tensor, self.torch.default_generator.manual_seed
        for module, own, value, total in bound["buffers"]:
            now = value if request["begins"] or total is None else total
            module._buffers[own] = now.to(module._buffers[own].dtype, copy=True)  # a graph in flight may have the one before
        number = request["first"]
        for number, seed in enumerate(request["seeds"], number):
            self.train(number, train)
            given = inputs if self.spread or len(inputs) == 1 else [tuple(inputs)]
            seed_next(seed)
            x = self.units[number][1](*given)
            inputs = [x] if type(x) is tensor else self.flatten(x, number)
        if request["count"]:
            for module, own, _, total in bound["buffers"]:
                total.copy_(module._buffers[own])
        self.guard(bound, number)
        return inputs

    def guard(self, bound, number):
        """Refuses a forward that changed a parameter. It runs with every forward, so the loops are those of map."""
        guards = bound.get("guards")
        if guards is None:
            columns = tuple(zip(*bound["parameters"])) or ((),) * 6
            guards = bound["guards"] = columns[1], columns[2], columns[3], list(columns[5])
        modules, owns, parameters, versions = guards
        if all(map(is_, map(dict.get, map(PARAMETERS, modules), owns), parameters)) and list(map(WRITES, parameters)) == versions:
            return
        for full, module, own, p, _, version in bound["parameters"]:
            if module._parameters.get(own) is not p or p._version != version:
                self.refuse_module(number, f"the forward changed parameter {full}; expected that only the optimizer changes it")

    def train(self, number, train):
        """Puts a module into training, as build left it, or into evaluation."""
        if self.trains[number] != train:
            for module, flag in self.flags[number]:
                module.training = flag and train
            self.trains[number] = train

    def flatten(self, x, number):
        """What a module gave as a list of tensors. It is the same whether the module behind it runs in this request or in another."""
        outputs = list(x) if isinstance(x, (tuple, list)) else [x]
        if not outputs or isinstance(x, (tuple, list)) and len(x) == 1 and not self.spread:
            self.refuse_module(number, f"module {self.called(number)} gave a {type(x).__name__} of {len(outputs)}; expected a tensor, or a tuple of two or more")
        for i, y in enumerate(outputs):
            if not isinstance(y, self.torch.Tensor):
                self.refuse_module(number, f"output {i} of module {self.called(number)} is of {type(y).__name__}; expected a tensor, or a tuple of tensors")
        return outputs

    def dense(self, outputs, number):
        """Refuses outputs that cannot be copied to the arena as they are."""
        for i, y in enumerate(outputs):
            if y.layout != self.torch.strided or y.device.type != "cpu":
                self.refuse_module(number, f"output {i} of module {self.called(number)} is on {y.device} and of layout {y.layout}; expected a dense tensor of the processor")

    def called(self, number):
        name, unit = self.units[number]
        return f"{name} ({self.kind(unit)})"

    def kind(self, unit):
        return f"part of {type(self.whole).__name__}" if self.whole not in (None, unit) else type(unit).__name__

    def store(self, outputs, request):
        """Copies outputs to where they are to be."""
        number = request["first"] + len(request["seeds"]) - 1
        if len(outputs) != len(request["outputs"]):
            self.refuse_module(number, f"module {self.called(number)} gave {len(outputs)} tensors; expected {len(request['outputs'])}, as in the dry run")
        self.dense(outputs, number)
        for i, (y, t) in enumerate(zip(outputs, request["outputs"])):
            if list(y.shape) != t["shape"] or self.names.get(y.dtype) != t["type"]:
                self.refuse_module(number, f"output {i} of module {self.called(number)} is {y.dtype} of shape {tuple(y.shape)}; expected {t['type']} of shape {tuple(t['shape'])}, as in the dry run")
            if y.dtype == self.torch.int64 and (int(y.min()) < -(1 << 31) or int(y.max()) >= 1 << 31):
                self.refuse_module(number, f"output {i} of module {self.called(number)} has integers from {int(y.min())} to {int(y.max())}; expected those of 32 bits")
            self.place(t).copy_(y.detach())

    def backward(self, request):
        """Runs the backward of a forward that was kept: adds to gradients of parameters and writes those of inputs."""
        if request["keep"] not in self.kept:
            raise Refused(f"nothing is kept as {request['keep']!r}; expected what a forward kept and no backward has used")
        name, leaves, outputs, forward = self.kept.pop(request["keep"])
        bound = self.use(name)
        for number in range(forward["first"], forward["first"] + len(forward["seeds"])):
            self.train(number, forward["train"])  # a checkpoint within it runs forward again
        if forward.get("loss") is not None:
            roots, given = outputs, [self.torch.tensor(request["weight"])]
        else:
            flowing = [(y, t) for y, t in zip(outputs, request["doutputs"]) if t is not None and y.requires_grad]
            roots, given = [y for y, _ in flowing], [self.place(t, list(y.shape)) for y, t in flowing]
        if roots and roots[0].requires_grad:
            self.torch.autograd.backward(roots, given)
        for leaf, t, of in zip(leaves, request["dinputs"], forward["inputs"]):
            if t is not None:
                self.write_gradient(leaf, self.place(t, of["shape"]))
        parameters = bound["parameters"]
        if not all(p.grad is gradient for _, _, _, p, gradient, _ in parameters):
            full = next(full for full, _, _, p, gradient, _ in parameters if p.grad is not gradient)
            raise Refused(f"the gradient of parameter {full} was replaced; expected that the backward adds to it")

    def write_gradient(self, leaf, to):
        if leaf is None or leaf.grad is None:
            to.zero_()
        else:
            to.copy_(leaf.grad)

    def drop(self, keep):
        self.kept.pop(keep, None)

    def loss(self, outputs, wanted):
        """The user's loss of what the last module gave, and of targets: one number, which is written where it is wanted."""
        if self.function is None:
            raise Refused("a forward with a loss after a build that named no function for it; expected one with a name")
        targets = [self.place(t) for t in wanted["targets"]]
        loss = self.loss_of(outputs, [x.long() if x.dtype == self.torch.int32 else x.clone() for x in targets])
        self.arena.check(wanted["at"], 4)
        NUMBER.pack_into(self.arena.memory, wanted["at"], loss.item())
        return loss

    def loss_of(self, outputs, targets):
        torch, function = self.torch, self.function
        loss = function(*(x[0] if len(x) == 1 else tuple(x) for x in (outputs, targets)))
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0 or loss.dtype != torch.float32:
            found = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            self.refuse(f"the loss function gave {found}; expected a tensor of torch.float32 with one number, of shape ()", function)
        return loss

    # The dry run.

    def probe(self, request):
        """Runs each module by itself on made-up inputs, and says what it gives, keeps and takes."""
        torch, repeat, seed = self.torch, request["repeat"], request["seed"]
        self.use(None)
        torch.default_generator.manual_seed(seed)
        x, out = [self.example(t) for t in request["inputs"]], []
        for number in range(len(self.units)):
            found, x = self.probe_module(number, x, repeat, seed)
            out.append(found)
        Split(self, seed).check(*([self.example(t) for t in request["inputs"]] for _ in range(2)))
        if self.function is not None and request.get("targets"):
            self.probe_loss(x, request)
        return out

    def probe_loss(self, outputs, request):
        """Has the user's loss of made-up targets, so that an error in it is seen before the training."""
        targets = [self.example({**t, "limit": t["limit"] or (outputs[0].shape[-1] if outputs[0].dim() else 2)}) for t in request["targets"]]
        if request.get("ignores"):
            targets[0].view(-1)[::2] = -1
        with self.torch.enable_grad():
            leaves = [y.detach().clone().requires_grad_(y.is_floating_point()) for y in outputs]
            loss = self.loss_of([y.clone() for y in leaves], targets)
            if not loss.requires_grad:
                self.refuse("the loss function gave a number that no gradient flows through; expected one that depends on what the last module gives", self.function)
            loss.backward()

    def example(self, t):
        if t["type"] == "i32":
            return self.torch.randint(0, t["limit"] or 2, t["shape"])
        return self.torch.rand(t["shape"])

    def probe_module(self, number, inputs, repeat, seed):
        name, unit = self.units[number]
        originals = list(self.originals(name, unit, self.buffers))
        bound = self.copied(number, {})
        values = [p.detach().clone() for _, _, _, p, _, _ in bound["parameters"]]
        times, first = ([], []), None
        self.install(bound)
        try:
            for _ in range(repeat):
                sizes, outputs = self.probe_once(number, bound, inputs, seed, times)
                self.unchanged(number, bound, values)
                self.repeats(first, outputs, number)
                first = [y.detach() for y in outputs]
        finally:
            self.install(self.sets[None])
            for _, m, own, b in originals:
                m._buffers[own] = b
        own = {p.data_ptr() for _, _, _, p, _, _ in bound["parameters"]}
        return {
            "inputs": [self.shape(x, number, f"input {i}") for i, x in enumerate(inputs)],
            "outputs": [self.shape(y, number, f"output {i}") for i, y in enumerate(first)],
            "saved_bytes": sum(t.numel() * t.element_size() for at, t in sizes.items() if at not in own),
            "forward_seconds": sorted(times[0])[repeat // 2], "backward_seconds": sorted(times[1])[repeat // 2],
            "differentiable": [y.requires_grad for y in outputs],
        }, first

    def copied(self, number, made):
        """A set of a module, for a dry run: a module that computes with other parameters is found out. Those that are tied are made once."""
        name, unit = self.units[number]
        return {
            "parameters": self.copies(name, unit, made),
            "buffers": [(m, own, b.to(self.torch.float32, copy=True), None) for _, m, own, b in self.originals(name, unit, self.buffers)],
            "recurrent": self.sets[None]["recurrent"],
        }

    def copies(self, name, unit, made):
        out = {}
        for full, module, own, p in self.originals(name, unit, self.parameters):
            p.grad = None
            if p not in made:
                made[p] = self.torch.nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)
            out.setdefault((module, own), (full, module, own, made[p], None, 0))
        return list(out.values())

    def probe_once(self, number, bound, inputs, seed, times):
        torch, request = self.torch, {"first": number, "seeds": [seed], "train": True, "begins": True, "count": False}
        sizes = {}
        with torch.enable_grad():
            leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
            begin = perf_counter()
            with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.setdefault(t.data_ptr(), t) is None or t, lambda t: t):
                outputs = self.run(request, bound, [x.clone() for x in leaves])
            self.dense(outputs, number)
            middle = perf_counter()
            roots = [y for y in outputs if y.requires_grad]
            if roots:
                self.backward_once(number, roots)
            times[0].append(middle - begin)
            times[1].append(perf_counter() - middle)
        return sizes, outputs

    def backward_once(self, number, roots):
        try:
            self.torch.autograd.backward(roots, [self.torch.ones_like(y) for y in roots])
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            self.refuse_module(number, f"the gradient of module {self.called(number)} flows to what another one computed, by another way than its inputs; expected that what it computes with is given to it")

    def unchanged(self, number, bound, values):
        """Refuses a module that has made or changed parameters in its forward."""
        name, unit = self.units[number]
        for full, _, _, _ in self.tensors(name, unit, "_parameters"):
            if full not in self.parameters:
                self.refuse_module(number, f"the forward made parameter {full}; expected that build makes them all")
        for full, (_, _, p) in self.parameters.items():
            if p.grad is not None:
                p.grad = None
                self.refuse_module(number, f"module {self.called(number)} computes with parameter {full} from elsewhere than where it is registered; expected that it reads its own attribute, and that a module which shares one has it as an attribute too")
        for (full, _, _, p, _, _), value in zip(bound["parameters"], values):
            if not self.same(p.detach(), value):
                self.refuse_module(number, f"the forward changed parameter {full}; expected that only the optimizer changes it")

    def repeats(self, first, outputs, number):
        """Refuses a module whose outputs depend on more than its inputs and PyTorch's random numbers."""
        if first is None:
            return
        if len(first) != len(outputs):
            self.refuse_module(number, f"module {self.called(number)} gave {len(first)} and then {len(outputs)} tensors; expected the same of the same inputs")
        for i, (a, b) in enumerate(zip(first, outputs)):
            if a.shape != b.shape:
                self.refuse_module(number, f"output {i} of module {self.called(number)} has shape {tuple(a.shape)} and then {tuple(b.shape)}; expected the same of inputs of the same shape")
            if not self.same(a, b.detach()):
                self.refuse_module(number, f"output {i} of module {self.called(number)} differs between two forwards with the same inputs and the same seed of PyTorch; expected the same, which recomputation needs")

    def shape(self, x, number, what):
        if x.dtype not in self.names:
            self.refuse_module(number, f"{what} of module {self.called(number)} is of {x.dtype}; expected torch.float32, as of x.float(), torch.int64 or torch.int32")
        if x.numel() == 0:
            self.refuse_module(number, f"{what} of module {self.called(number)} has no elements: shape {tuple(x.shape)}; expected at least one")
        return {"shape": list(x.shape), "type": self.names[x.dtype]}


class Split:
    """Holds modules that run one by one against the same modules in one graph, in a dry run."""

    def __init__(self, of, seed):
        self.of, self.torch, self.seed = of, of.torch, seed
        made = {}
        self.bounds = [of.copied(number, made) for number in range(len(of.units))]
        self.originals = [list(of.originals(name, unit, of.buffers)) for name, unit in of.units]

    def check(self, inputs, others):
        of = self.of
        for bound in self.bounds:
            of.install(bound)
        try:
            with self.torch.enable_grad():
                given, outputs = self.together(inputs)
                gradients = self.gradients(outputs)
                self.alone(given, others, outputs, gradients)
        finally:
            of.install(of.sets[None])
            for originals in self.originals:
                for _, module, own, b in originals:
                    module._buffers[own] = b
        if of.whole is not None and of.units[0][1] is not of.whole:
            self.as_whole(inputs, outputs, gradients)

    def run(self, number, inputs, train=True):
        request = {"first": number, "seeds": [self.seed + number], "train": train, "begins": True, "count": False}
        return self.of.run(request, self.bounds[number], inputs)

    def together(self, inputs):
        """What each module is given, and what the last one gives, as one graph."""
        given, x = [], [x.clone() for x in inputs]
        for number in range(len(self.bounds)):
            given.append([(y.detach().clone(), y.requires_grad) for y in x])
            flows = any(y.requires_grad for y in x)
            x = self.run(number, x)
            if flows and not any(y.requires_grad for y in x):
                self.of.refuse_module(number, f"no gradient flows through any output of module {self.of.called(number)}, so that nothing in front of it learns; expected one that depends on what is trained, or requires_grad_(False) in front of it")
        return given, x

    def backward(self, outputs, gradients):
        pairs = [(y, dy) for y, dy in zip(outputs, gradients) if y.requires_grad and dy is not None]
        if pairs:
            self.torch.autograd.backward([y for y, _ in pairs], [dy for _, dy in pairs])

    def weights(self, outputs):
        """A gradient of outputs, of which no two elements are equal."""
        return [self.torch.cos(self.torch.arange(float(y.numel()))).view(y.shape).to(y.dtype) if y.is_floating_point() else None for y in outputs]

    def parameters(self, number):
        return [(full, p) for full, _, _, p, _, _ in self.bounds[number]["parameters"] if p.requires_grad]

    def gradients(self, outputs):
        """The gradient of each parameter by name; None where nothing flows to it."""
        self.backward(outputs, self.weights(outputs))
        every = [pair for number in range(len(self.bounds)) for pair in self.parameters(number)]
        found = {full: p.grad for full, p in every}
        for _, p in every:
            p.grad = None
        return found

    def alone(self, given, others, outputs, expected):
        """Runs each module on what it was given, the last one first, after all ran on something else."""
        of = self.of
        with self.torch.no_grad():
            x = [x.clone() for x in others]
            for number in range(len(self.bounds)):
                x = self.run(number, x)
        wanted, back = [y.detach() for y in outputs], self.weights(outputs)
        for number in reversed(range(len(self.bounds))):
            leaves = [x.clone().requires_grad_(flows) for x, flows in given[number]]
            found = self.run(number, [x.clone() for x in leaves])
            if len(found) != len(wanted) or not all(of.same(a.detach(), b) for a, b in zip(found, wanted)):
                of.refuse_module(number, f"module {of.called(number)} gives something else of the same inputs when it runs alone, after the others ran on other samples; expected that it depends on its inputs, its parameters and random numbers of PyTorch alone, and that its inputs share no memory")
            before = {p for earlier in range(number) for _, p in self.parameters(earlier)} - {p for later in range(number, len(self.bounds)) for _, p in self.parameters(later)}
            self.backward(found, back)
            if any(p.grad is not None for p in before):
                of.refuse_module(number, f"the gradient of module {of.called(number)} flows to modules in front of it by another way than its inputs; expected that what it computes with is given to it")
            if any(flows for _, flows in given[number]) and not any(x.grad is not None for x in leaves):
                of.refuse_module(number, f"no gradient flows from the outputs of module {of.called(number)} to any of its inputs, so that nothing in front of it learns; expected that one does, or requires_grad_(False) in front of it")
            wanted, back = [x for x, _ in given[number]], [x.grad for x in leaves]
        for number in range(len(self.bounds)):
            for full, p in self.parameters(number):
                if not self.near(p.grad, expected[full]):
                    of.refuse_module(number, f"the gradient of parameter {full} is another when modules run one by one than when all are one graph; expected that a module depends on its inputs alone")

    def near(self, a, b):
        if a is None or b is None:
            return a is b or not (b if a is None else a).any()
        return self.torch.allclose(a, b, rtol=1e-3, atol=1e-5 * (float(b.abs().max()) or 1), equal_nan=True)

    def as_whole(self, inputs, outputs, expected):
        """Runs the module that was cut as it is, with the random numbers of its parts."""
        of, torch = self.of, self.torch
        hooks, kept = [], [(m, dict(m._buffers)) for m in of.whole.modules()]
        for number, (name, _) in enumerate(of.units):
            if number > 0:
                hooks.append(of.whole.get_submodule(name).register_forward_pre_hook(lambda *_, number=number: torch.default_generator.manual_seed(self.seed + number) and None))
        try:
            for module, buffers in kept:
                module._buffers.update({own: None if b is None else b.clone() for own, b in buffers.items()})
            torch.default_generator.manual_seed(self.seed)
            with torch.enable_grad():
                found = of.whole(*(x.clone() for x in inputs))
                found = list(found) if isinstance(found, (tuple, list)) else [found]
                if len(found) != len(outputs) or not all(of.same(a.detach(), b.detach()) for a, b in zip(found, outputs)):
                    of.refuse_module(0, f"the parts of the {type(of.whole).__name__} that model.cut cuts give something else than the whole; cut elsewhere, or put what is in between into modules that no cut is within")
                self.backward(found, self.weights(found))
            for full, (_, _, p) in of.parameters.items():
                if p.requires_grad and not self.near(p.grad, expected[full]):
                    of.refuse_module(0, f"the gradient of parameter {full} is another when the {type(of.whole).__name__} is cut than as a whole; cut elsewhere, or put what is in between into modules that no cut is within")
        finally:
            for hook in hooks:
                hook.remove()
            for module, buffers in kept:
                module._buffers.update(buffers)
            for _, _, p in of.parameters.values():
                p.grad = None


# ---- A module of PyTorch that is cut ----------------------------------------------------------------------------


class Cutter:
    """Cuts a module in front of the calls of some of those within it, into modules that run one after the other.

    Its forward is traced on made-up samples: modules that no cut is within are called and not looked into. A trace knows what each value is for two
    numbers of samples. So sizes are numbers while it is traced, and what lives across a cut is a tensor that crosses, or is computed again behind it.
    """

    COUNTS = (2, 3)  # of samples
    # What makes tensors of numbers alone: it is part of the trace, and not a constant of it.
    FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor", "tril_indices", "triu_indices", "zeros")

    def __init__(self, torch, program, whole, examples):
        self.torch, self.program, self.whole, self.examples = torch, program, whole, examples  # of each count
        self.kind = type(whole).__name__
        self.modules = dict(whole.named_modules(remove_duplicate=False))

    def refuse(self, text, at=None):
        raise Refused(text, at or self.program.at(type(self.whole).forward))

    def cut(self, names):
        """The parts by name, each a module whose parameters have the names that they have in the whole."""
        self.check(names)
        graphs = []
        for train in (True, False):
            with self.made_up(train):
                if train:
                    self.whole(*(x.clone() for x in self.examples[0]))  # an error of the user's program is one of his own lines
                graphs.append(self.parts(names))
        (parts, training), (others, evaluation) = graphs
        if parts != others or any(self.crossing(a) != self.crossing(b) for a, b in zip(training, evaluation)):
            self.refuse(f"what lives across the cuts of a {self.kind} is not the same in training and in evaluation; expected the same, so cut where it is")
        return [(name, self.module(a, b)) for name, a, b in zip(parts, training, evaluation)]

    @staticmethod
    def crossing(graph):
        return sum(node.op == "placeholder" for node in graph.nodes)

    def check(self, names):
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            if getattr(self.whole, hooks):
                self.refuse(f"build returned a {self.kind} with hooks, which would not run where model.cut cuts it; expected hooks on modules within it")
        met = {}
        for name in names:
            if name not in self.modules or name == "":
                near = difflib.get_close_matches(name, [n for n in self.modules if n], 3, 0.5) or sorted((n for n in self.modules if n), key=lambda n: n.count("."))[:5]
                self.refuse(f"model.cut names {name!r}, and the {self.kind} has no such module; nearest: {', '.join(near)}")
            module = self.modules[name]
            if id(module) in met:
                self.refuse(f"model.cut names {met[id(module)]} and {name}, which are one module; expected each once")
            met[id(module)] = name

    @contextlib.contextmanager
    def made_up(self, train):
        """Nothing of what runs within changes the module: neither its running statistics nor whether it trains."""
        kept = [(m, dict(m._buffers), m.training) for m in self.whole.modules()]
        for module, buffers, training in kept:
            module._buffers.update({own: None if b is None else b.clone() for own, b in buffers.items()})
            module.training = training and train
        try:
            with self.torch.random.fork_rng(devices=[]), self.torch.no_grad():
                yield
        finally:
            for module, buffers, training in kept:
                module._buffers.clear()
                module._buffers.update(buffers)
                module.training = training

    def parts(self, names):
        """The names of the parts, in their order, and the graph of each."""
        trace = self.trace(names)
        cuts = []
        for name in names:
            calls = trace.calls.get(name, [])
            if len(calls) != 1:
                found = f"calls {len(calls)} times" if calls else "does not call as it was tried"
                near = "" if calls else "".join(f"; nearest: {n}" for n in [next((n for n, m in self.modules.items() if n.startswith(name + ".") and trace.called(n)), "")] if n)
                self.refuse(f"model.cut names {name}, of {type(self.modules[name]).__name__}, which the forward of the {self.kind} {found}; expected a module that it calls once{near}", calls[1][1] if calls else None)
            cuts.append((calls[0][0], name, calls[0][1]))
        cuts.sort()
        first = next((i for i, node in enumerate(trace.order) if node.op not in ("placeholder", "get_attr")), 0)
        if cuts[0][0] > first:
            cuts.insert(0, (0, "start" if "start" not in self.modules else "start.", None))
        for (at, name, _), (other, behind, line) in zip(cuts, cuts[1:]):
            if all(node.op in ("placeholder", "get_attr") for node in trace.order[at:other]):
                self.refuse(f"model.cut names {name} and {behind}, and nothing runs between them; remove one of them", line)
        begins = [0] + [at for at, _, _ in cuts[1:]] + [len(trace.order)]
        names = [name for _, name, _ in cuts]
        return names, Splitter(self, trace, names, begins).graphs()

    def trace(self, names):
        inside = {id(self.modules[prefix]) for name in names for prefix in itertools.accumulate(name.split("."), lambda a, b: f"{a}.{b}") if prefix != name}
        trace = tracer(self.torch)(self, {id(self.modules[name]): name for name in names}, inside)
        originals = {name: getattr(self.torch, name) for name in self.FACTORIES}
        try:
            for name, original in originals.items():
                setattr(self.torch, name, trace.factory(original))
            with self.torch.enable_grad():
                trace.trace(self.whole)
        except Refused:
            raise
        except Exception as error:
            own = [f for f in traceback.extract_tb(error.__traceback__) if self.program.owns(os.path.abspath(f.filename))]
            if trace.failed is not None or not own:
                raise  # in a module, as it runs
            self.refuse(f"the forward of the {self.kind} cannot be followed here: {type(error).__name__}: {message(error)}; expected operations of PyTorch in what model.cut cuts, so put this into a module that no cut is within", (own[-1].filename, own[-1].lineno or 0))
        finally:
            for name, original in originals.items():
                setattr(self.torch, name, original)
        return trace

    def module(self, training, evaluation):
        """A part, which runs one of two graphs."""
        GraphModule, names = self.torch.fx.GraphModule, self.whole.state_dict().keys()
        part = GraphModule(self.whole, training)
        other = GraphModule(self.whole, evaluation)
        for path, module in other.named_modules(remove_duplicate=False):  # what only an evaluation uses
            inside = part.get_submodule(path.rpartition(".")[0]) if path else None
            if path and not hasattr(inside, path.rpartition(".")[2]):
                inside.add_module(path.rpartition(".")[2], module)
            for own, p in module._parameters.items():
                part.get_submodule(path)._parameters.setdefault(own, p)
            for own, b in module._buffers.items():
                part.get_submodule(path)._buffers.setdefault(own, b)
        for path, module in part.named_modules(remove_duplicate=False):
            for own in module._buffers:
                if f"{path}.{own}".lstrip(".") not in names:
                    module._non_persistent_buffers_set.add(own)
        runs = {True: type(part).forward, False: type(other).forward}
        part.forward = lambda *inputs: runs[part.training](part, *inputs)
        return part


class Splitter:
    """Splits what was traced into graphs, and has values cross from each to those behind it."""

    def __init__(self, cutter, trace, names, begins):
        self.cutter, self.trace, self.torch, self.names, self.begins = cutter, trace, cutter.torch, names, begins
        self.part = {node: bisect.bisect_right(begins, i) - 1 for i, node in enumerate(trace.order)}
        self.inputs = [node for node in trace.order if node.op == "placeholder"]
        self.part.update({node: 0 for node in self.inputs})
        self.memory = {}

    def graphs(self):
        last = len(self.names) - 1
        wanted = [set() for _ in self.names]  # of each part, what crosses to it
        for part in range(last, 0, -1):
            uses = [u for node in self.of(part) for u in node.all_input_nodes]
            wanted[part] = {n for u in uses if self.part[u] < part for n in self.needs(u, part)}
            wanted[part] |= {n for n in (wanted[part + 1] if part < last else ()) if self.part[n] < part}
        at = {node: i for i, node in enumerate(self.trace.order)}
        crossing = [sorted(nodes, key=at.get) for nodes in wanted]
        for part in range(1, last + 1):
            if not crossing[part]:
                self.cutter.refuse(f"nothing lives across the cut in front of {self.names[part]}; expected a tensor, so cut elsewhere")
        return [self.graph(part, crossing[part] if part else self.inputs, crossing[part + 1] if part < last else None) for part in range(last + 1)]

    def of(self, part):
        return [n for n in self.trace.order[self.begins[part]:self.begins[part + 1]] if n.op not in ("placeholder", "get_attr")] + ([self.trace.output] if part == len(self.names) - 1 else [])

    def crosses(self, node):
        """Reports whether a value may cross: a tensor of each sample."""
        values = self.trace.values[node]
        return all(isinstance(v, self.torch.Tensor) and v.dim() > 0 and v.shape[0] == n and v.numel() for v, n in zip(values, Cutter.COUNTS)) and values[0].dtype in self.types

    @property
    def types(self):
        t = self.torch
        return (t.float32, t.int64, t.int32, t.bool)

    def literal(self, a, b, size):
        """A value that follows from the number of samples, which size gives: numbers and tuples of them. None of others, in a tuple."""
        if type(a) is not type(b):
            return None
        if isinstance(a, tuple):
            parts = [self.literal(x, y, size) for x, y in zip(a, b)]
            return None if len(a) != len(b) or None in parts else (tuple(p for (p,) in parts),)
        if isinstance(a, (int, float, bool, str, type(None), self.torch.dtype, self.torch.device)) and a == b:
            return (a,)
        few, more = Cutter.COUNTS
        if type(a) is int and a % few == 0 and a * more == b * few:
            return (size(a // few),)
        return None

    def needs(self, node, part):
        """What has to cross for a part to have a value of an earlier one."""
        if node not in self.memory:
            self.memory[node] = self.find(node, part)
        return self.memory[node]

    def find(self, node, part):
        if node.op == "get_attr" or self.literal(*self.trace.values[node], lambda k: k) is not None:
            return set()
        if self.crosses(node):
            return {node}
        a, b = self.trace.values[node]
        is_tensor = isinstance(a, self.torch.Tensor)
        what = f"{a.dtype} of shapes {tuple(a.shape)} and {tuple(b.shape)} for {Cutter.COUNTS[0]} and {Cutter.COUNTS[1]} samples" if is_tensor else f"of {type(a).__name__}"
        if node.op not in ("call_function", "call_method") or node in self.trace.random:
            self.cutter.refuse(f"{node.name}, which lives across the cut in front of {self.names[part]}, is {what}; expected a tensor of torch.float32, of integers or of bools, with the samples as its first dimension", self.trace.lines.get(node))
        return {n for u in node.all_input_nodes for n in self.needs(u, part)}

    def graph(self, part, crossing, behind):
        g, has, raw = self.torch.fx.Graph(), {}, {}
        for node in crossing:
            raw[node] = g.placeholder(node.name)
        sized = next((n for n in crossing if self.crosses(n)), None)

        def size(k):
            shape = g.call_function(getattr, (raw[sized], "shape"))
            return g.call_function(operator.mul, (g.call_function(operator.getitem, (shape, 0)), k))

        def get(node):
            if node in has:
                return has[node]
            found = self.literal(*self.trace.values[node], size) if self.part[node] < part and node.op != "get_attr" else None
            if found is not None:
                return found[0]
            kind = getattr(self.trace.values[node][0], "dtype", None)
            if node in raw:
                has[node] = raw[node] if part == 0 or kind in (self.torch.float32, self.torch.int64) else g.call_method("to", (raw[node], kind))
            else:
                has[node] = g.node_copy(node, get)
            return has[node]

        for node in self.of(part):
            if node.op != "output":
                has[node] = g.node_copy(node, get)
        if behind is None:
            g.output(self.torch.fx.node.map_arg(self.trace.output.args[0], get))
            return g
        out = []
        for node in behind:
            narrow = self.trace.values[node][0].dtype in (self.torch.bool, self.torch.int32)
            if node in raw and part > 0:
                out.append(raw[node])
            else:
                out.append(g.call_method("long", (get(node),)) if narrow else get(node))
        g.output(out[0] if len(out) == 1 else tuple(out))
        return g


def tracer(torch):
    """The class that traces a module for a Cutter: each value is known for two numbers of samples."""
    fx = torch.fx

    class Traced(fx.Proxy):
        def __getattr__(self, name):
            return Attribute(self, name)

        def __index__(self):
            return self.tracer.known(self, operator.index)

        def __int__(self):
            return self.tracer.known(self, int)

        def __float__(self):
            return self.tracer.known(self, float)

        def __len__(self):
            return self.tracer.known(self, len)

        def __bool__(self):
            return self.tracer.known(self, bool)

        def __iter__(self):
            return iter([self[i] for i in range(len(self))])

    class Attribute(Traced):
        def __init__(self, root, name):
            self.root, self.attr, self.tracer, self.made = root, name, root.tracer, None

        @property
        def node(self):
            if self.made is None:
                self.made = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
            return self.made

        def __call__(self, *args, **kwargs):
            return self.tracer.create_proxy("call_method", self.attr, (self.root,) + args, kwargs)

    class Tracer(fx.Tracer):
        proxy_buffer_attributes = True

        def __init__(self, cutter, cuts, inside):
            super().__init__()
            self.cutter, self.cuts, self.inside = cutter, cuts, inside
            self.order, self.values, self.lines, self.random, self.calls = [], {}, {}, set(), {}
            self.running, self.failed, self.output = False, None, None

        def line(self):
            frame = sys._getframe(1)
            while frame is not None:
                if self.cutter.program.owns(os.path.abspath(frame.f_code.co_filename)):
                    return frame.f_code.co_filename, frame.f_lineno
                frame = frame.f_back
            return None

        def proxy(self, node):
            return Traced(node, self)

        def factory(self, original):
            @functools.wraps(original)
            def make(*args, **kwargs):
                return original(*args, **kwargs) if self.running else self.create_proxy("call_function", original, args, kwargs)

            return make

        def create_args_for_root(self, function, is_module, concrete_args=None):
            given = [self.create_proxy("placeholder", f"given_{i}", (), {}) for i in range(len(self.cutter.examples[0]))]
            return function, [self.root] + given

        def is_leaf_module(self, module, name):
            return id(module) not in self.inside

        def called(self, name):
            return any(node.op == "call_module" and node.target == name for node in self.order)

        def call_module(self, module, forward, args, kwargs):
            if self.running:
                return forward(*args, **kwargs)
            if id(module) in self.cuts:
                self.calls.setdefault(self.cuts[id(module)], []).append((len(self.order), self.line()))
            return super().call_module(module, forward, args, kwargs)

        def getattr(self, attr, value, cache):
            return value if self.running else super().getattr(attr, value, cache)

        def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
            if not torch.is_grad_enabled():
                self.cutter.refuse(f"the forward of the {self.cutter.kind} computes without gradients here; expected that in a module that no cut is within", self.line())
            node = super().create_node(kind, target, args, kwargs, name, type_expr)
            if kind == "output":
                self.output = node
                return node
            self.order.append(node)
            self.lines[node] = self.line()
            before, self.running = torch.get_rng_state(), True
            try:
                with torch.no_grad():
                    self.values[node] = [self.compute(node, i) for i in range(len(self.cutter.COUNTS))]
            except BaseException:
                self.failed = node
                raise
            finally:
                self.running = False
            if not torch.equal(before, torch.get_rng_state()):
                self.random.add(node)
            return node

        def compute(self, node, which):
            get = lambda of: fx.node.map_arg(of, lambda n: self.values[n][which])
            if node.op == "placeholder":
                return self.cutter.examples[which][int(node.target.rpartition("_")[2])].clone()
            if node.op == "get_attr":
                return functools.reduce(getattr, node.target.split("."), self.root)
            args, kwargs = get(node.args), get(node.kwargs)
            if node.op == "call_function":
                return node.target(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return self.root.get_submodule(node.target)(*args, **kwargs)

        def known(self, proxy, of):
            """What control flow depends on: a number that is the same for any number of samples."""
            a, b = self.values[proxy.node]
            if isinstance(a, torch.Tensor) and of is not len:
                self.cutter.refuse(f"the forward of the {self.cutter.kind} depends on the values of a tensor here; expected that in a module that no cut is within", self.line())
            a, b = of(a), of(b)
            if a != b:
                self.cutter.refuse(f"the forward of the {self.cutter.kind} depends on the number of samples here: {a} and {b} for {Cutter.COUNTS[0]} and {Cutter.COUNTS[1]} of them; expected that in a module that no cut is within", self.line())
            return a

    return Tracer


FRAMEWORKS = [Torch]


# ---- the worker's requests --------------------------------------------------------------------------------------


class Stub:
    """Answers the requests of a worker."""

    def __init__(self, arena):
        self.arena, self.framework, self.threads, self.program, self.calls = arena, None, 1, None, {}

    def hello(self, request):
        if request["version"] != VERSION:
            raise Refused(f"version {request['version']} of the protocol; this file has {VERSION}")
        self.threads = request["threads"]
        return {"version": VERSION, "python": sys.version.split()[0]}

    def build(self, request):
        path, function = request["path"], request["function"]
        self.framework, self.program, self.calls = None, Program(path), {}
        module = self.load(path)
        build = getattr(module, function, None)
        if not callable(build):
            raise Refused(f"{path} has no function {function}; expected one, which returns the modules")
        self.program.build = build
        loss = None
        if request["loss"]:
            loss = getattr(module, request["loss"], None)
            if not callable(loss):
                raise Refused(f"{path} has no function {request['loss']}; expected one, which gives the loss of logits and targets", self.program.at())
        for framework in FRAMEWORKS:
            framework.begin(request["seed"])
        self.takes(build, function, request["args"])
        built = build(**request["args"])
        for framework in FRAMEWORKS:
            if framework.made(built):
                made = framework(self.arena, self.threads, self.program)
                made.function = loss
                modules = made.build(built, request.get("cut") or [], request.get("inputs") or [])
                self.framework = made
                return {"framework": made.name, "modules": modules}
        kind = ("empty " if isinstance(built, (list, tuple)) and not built else "") + type(built).__name__
        raise Refused(f"{function} returned: {kind}; expected a module of PyTorch or a list of them", self.program.at())

    def takes(self, build, function, args):
        """Refuses arguments that the function does not take, or that it lacks, which would have no line of the user's."""
        try:
            signature = inspect.signature(build)
        except (TypeError, ValueError):
            return  # it says nothing of itself
        try:
            signature.bind(**args)
        except TypeError as error:
            there = ", ".join(signature.parameters) or "none"
            raise Refused(f"{function}: {error}; its arguments are: {there}", self.program.at()) from None

    def load(self, path):
        """Runs the user's file as a module, of which the directory is where it finds others."""
        if self.program.directory not in sys.path:
            sys.path.insert(0, self.program.directory)
        name = os.path.splitext(os.path.basename(path))[0]
        found = importlib.util.spec_from_file_location(name, os.path.abspath(path))
        if found is None:
            raise Refused(f"{path} is no Python file; expected a name that ends in .py")
        loaded = sys.modules.get(name)
        if name in [framework.package for framework in FRAMEWORKS] or loaded is not None and getattr(loaded, "__file__", None) != found.origin:
            raise Refused(f"{path} has the name of a module that is part of Python or was imported before; expected a name of its own")
        sys.modules[name] = module = importlib.util.module_from_spec(found)
        try:
            found.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def probe(self, request):
        return {"modules": self.framework.probe(request)}

    def write(self, request):
        for tensor in request["tensors"]:
            self.framework.write(tensor["name"], tensor["at"])

    def bind(self, request):
        self.framework.bind(request)

    def forward(self, request):
        self.calls[request["call"]] = request
        self.framework.forward(request)

    def backward(self, request):
        self.calls[request["call"]] = request
        self.framework.backward(request)

    def again(self, request):
        """Repeats a forward or a backward, with other seeds."""
        call = self.calls.get(request["call"])
        if call is None:
            raise Refused(f"call {request['call']!r} is to be repeated; expected one of a request before")
        if call["request"] == "backward":
            self.framework.backward(call)
            return
        call["seeds"], call["begins"] = request["seeds"], request["begins"]
        self.framework.forward(call)

    def drop(self, request):
        self.framework.drop(request["keep"])

    def batch(self, request):
        for one in request["requests"]:
            if one["request"] not in self.PASSES:
                raise Refused(f"request {one['request']!r} in a batch; expected one of {', '.join(self.PASSES)}")
            getattr(self, one["request"])(one)

    PASSES = ("bind", "forward", "backward", "again", "drop")
    REQUESTS = ("hello", "build", "probe", "write", "batch") + PASSES

    def answer(self, request):
        """The answer to a request, as text: what it gives, or the error that it ended with."""
        name = request.get("request")
        try:
            if name not in self.REQUESTS:
                raise Refused(f"request {name!r}; expected one of {', '.join(self.REQUESTS)}")
            if self.framework is None and name not in ("hello", "build"):
                raise Refused(f"request {name!r} before a build that succeeded")
            return encode(getattr(self, name)(request) or {})
        except BaseException as error:  # whatever the user's program raises is the worker's to report, sys.exit too
            return encode({"error": self.report(error)})

    def report(self, error):
        """What the worker is told of an error: the user's line, where one had a part in it."""
        kind = "" if isinstance(error, Refused) else type(error).__name__
        try:
            frames = [f for f in traceback.extract_tb(error.__traceback__, limit=-MOST_FRAMES) if f.filename != __file__]
            file, line = self.place(error, frames)
            lines = [text[:LONGEST_TEXT].rstrip("\n") for text in traceback.format_list(frames)] if kind else []
            return {"type": kind, "message": message(error), "file": file, "line": line, "traceback": lines}
        except BaseException as inner:
            return {"type": kind, "message": f"its text and place cannot be had: {type(inner).__name__}", "file": "", "line": 0, "traceback": []}

    def place(self, error, frames):
        if isinstance(error, Refused):
            return error.at
        owns = self.program.owns if self.program else lambda file: False
        if isinstance(error, SyntaxError) and error.filename and owns(os.path.abspath(error.filename)):
            return error.filename, error.lineno or 0
        own = [f for f in frames if owns(os.path.abspath(f.filename))]
        return (own[-1].filename, own[-1].lineno or 0) if own else ("", 0)


def message(error):
    """The text of an error, whatever its own functions do."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except BaseException as inner:
        return f"its text cannot be had: {type(inner).__name__}"
    if isinstance(error, ModuleNotFoundError):
        text += f"; the interpreter is {sys.executable}"
    if len(text) > LONGEST_TEXT:
        return f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"
    return f"{text}"


def encode(message):
    text = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > LONGEST_MESSAGE:
        raise Refused(f"an answer of {len(text)} bytes; at most {LONGEST_MESSAGE} are expected")
    return text


class Channel:
    """Messages over a stream."""

    def __init__(self, stream):
        self.stream, self.process = stream, os.getpid()
        self.identity = self.identify()
        os.register_at_fork(after_in_child=self.forget)

    def identify(self):
        status = os.fstat(self.stream.fileno())
        return status.st_dev, status.st_ino

    def forget(self):
        """Closes the stream in a process that the user's program forked, and has that end with this one: the worker is to see when this one ends."""
        try:
            if self.identify() == self.identity:
                self.stream.close()
        except OSError:
            pass
        try:
            end_with(os.pidfd_open(self.process), select.POLLIN, 0)
        except ProcessLookupError:
            os._exit(1)
        except OSError:
            pass  # an old kernel: the worker ends what has not left the process group

    def read(self, count):
        out = bytearray()
        while len(out) < count:
            part = self.stream.recv(count - len(out))
            if not part:
                raise SystemExit(0)  # the worker is gone, or wants this process to end
            out += part
        return bytes(out)

    def receive(self):
        (length,) = struct.unpack("<I", self.read(4))
        if length > LONGEST_MESSAGE:
            raise SystemExit(f"a message of {length} bytes; at most {LONGEST_MESSAGE} are expected")
        return json.loads(self.read(length))

    def send(self, text):
        if os.getpid() != self.process:
            os._exit(0)  # the user's program forked, and returned here twice
        if self.identify() != self.identity:
            raise OSError("the descriptor is that of another file")
        self.stream.sendall(struct.pack("<I", len(text)) + text)


EXIT_SECONDS = 0.5  # that what runs at the exit of the user's program has


def end_with(descriptor, event, seconds):
    """Ends this process so long after an event, whatever the user's program does."""

    def watch():
        poll = select.poll()
        poll.register(descriptor, event)
        poll.poll()
        sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def close_others(last):
    """Closes descriptors that this process has from whoever started the daemon: they are nothing for the user's program."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > last:
            try:
                if os.get_inheritable(int(name)):  # those that Python opened since are not
                    os.close(int(name))
            except OSError:
                pass  # that of the listing


def main():
    if sys.version_info < (3, 9):
        raise SystemExit(f"{sys.executable} is Python {sys.version.split()[0]}; expected 3.9 or newer")
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        del sys.path[0]  # where this file lies
    close_others(STUB)
    stream = socket.socket(fileno=int(sys.argv[1]))
    stub, channel = Stub(Arena(int(sys.argv[2]), int(sys.argv[3]))), Channel(stream)
    for descriptor in (1, 2):
        os.set_inheritable(int(sys.argv[descriptor]), False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the worker
    end_with(stream, select.POLLRDHUP, EXIT_SECONDS)  # the worker has closed its end
    try:
        while True:
            channel.send(stub.answer(channel.receive()))
    except OSError as error:
        try:
            print(f"the socket of the worker cannot be used: {error}", file=sys.stderr)
        finally:
            os._exit(SOCKET_CLOSED)


if __name__ == "__main__":
    main()
