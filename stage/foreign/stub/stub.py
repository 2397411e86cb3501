"""Computes modules of a user's framework for a worker of avgpiped, which starts this file in the user's interpreter.

    python3 stub.py SOCKET ARENA BYTES

SOCKET is the descriptor of a stream, ARENA that of BYTES of memory that both processes map. Each message is a length of 4 bytes, the lowest
first, and so many bytes of JSON; tensors are places in the arena. The worker asks and this file answers, one request at a time.
docs/worker-protocol.md says what requests mean.

It takes nothing but Python's standard library and the framework that the user's program imports.
"""

import faulthandler
import importlib.util
import json
import mmap
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
        return file.startswith(self.directory) and "site-packages" not in file and "dist-packages" not in file

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

    def build(self, built):
        """Takes what build returned apart: into the modules of a Sequential or of a list."""
        self.spread = not isinstance(built, self.torch.nn.Sequential)
        self.units = self.units_of(built)
        self.flags = [[(m, m.training) for m in unit.modules()] for _, unit in self.units]
        self.trains = [True] * len(self.units)
        out = [self.describe(name, unit) for name, unit in self.units]
        self.sets[None] = {
            "parameters": [(full, module, own, p, None, p._version) for full, (module, own, p) in self.parameters.items()],
            "buffers": [], "recurrent": [m for _, unit in self.units for m in unit.modules() if isinstance(m, self.torch.nn.RNNBase)],
        }  # as build made them
        return out

    def units_of(self, built):
        nn = self.torch.nn
        kind = type(built)
        if isinstance(built, (nn.Sequential, nn.ModuleList)):
            if isinstance(built, nn.Sequential) and kind.forward is not nn.Sequential.forward:
                self.refuse(f"build returned a {kind.__name__}, whose forward is not that of nn.Sequential, so that it cannot be cut; expected an nn.Sequential or a list of modules", kind.forward)
            if any(built.__dict__.get(hooks) for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")):
                self.refuse(f"build returned a {kind.__name__} with hooks, which would not run; expected hooks on its modules only")
            if built._parameters or built._buffers:
                self.refuse(f"build returned a {kind.__name__} with parameters or buffers of its own; expected that all are those of its modules")
            units = list(built._modules.items())  # named_children leaves out what it met before
        elif isinstance(built, nn.Module):
            self.refuse(f"build returned one {kind.__name__}, which cannot be cut; expected an nn.Sequential or a list of modules", kind.forward)
        else:
            units = [(str(i), m) for i, m in enumerate(built)]
        if not units:
            self.refuse(f"build returned a {kind.__name__} without modules; expected at least one")
        for name, unit in units:
            if not isinstance(unit, nn.Module):
                self.refuse(f"module {name} of what build returned is of {type(unit).__name__}; expected a module of PyTorch")
            if any(isinstance(m, self.torch.jit.ScriptModule) for m in unit.modules()):
                self.refuse(f"module {name} of what build returned is compiled by TorchScript; expected the module that it was compiled from")
        return units

    def refuse(self, text, *callables):
        """Refuses what the first of functions is about that the user wrote; build, unless he wrote any."""
        raise Refused(text, self.program.at(*callables))

    def refuse_module(self, number, text):
        self.refuse(text, type(self.units[number][1]).forward)

    def describe(self, name, unit):
        out = {"name": name, "type": type(unit).__name__, "parameters": [], "buffers": []}
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
        for path, module in unit.named_modules(prefix=name, remove_duplicate=False):
            for own, tensor in getattr(module, kind).items():
                if tensor is not None:
                    yield f"{path}.{own}", module, own, tensor

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
        for path, module in unit.named_modules(prefix=name, remove_duplicate=False):
            for own in list(module._parameters) + list(module._buffers):
                if f"{path}.{own}" in of:
                    yield (f"{path}.{own}",) + of[f"{path}.{own}"]

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
        return f"{name} ({type(unit).__name__})"

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
        torch, function = self.torch, self.function
        if function is None:
            raise Refused("a forward with a loss after a build that named no function for it; expected one with a name")
        targets = [self.place(t) for t in wanted["targets"]]
        given = [x.long() if x.dtype == torch.int32 else x.clone() for x in targets]
        loss = function(*(x[0] if len(x) == 1 else tuple(x) for x in (outputs, given)))
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0 or loss.dtype != torch.float32:
            found = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            self.refuse(f"the loss function gave {found}; expected a tensor of torch.float32 with one number, of shape ()", function)
        self.arena.check(wanted["at"], 4)
        NUMBER.pack_into(self.arena.memory, wanted["at"], loss.item())
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
        return out

    def example(self, t):
        if t["type"] == "i32":
            return self.torch.randint(0, t["limit"] or 2, t["shape"])
        return self.torch.rand(t["shape"])

    def probe_module(self, number, inputs, repeat, seed):
        name, unit = self.units[number]
        originals = list(self.originals(name, unit, self.buffers))
        bound = {
            "parameters": self.copies(name, unit),
            "buffers": [(m, own, b.to(self.torch.float32, copy=True), None) for _, m, own, b in originals],
            "recurrent": self.sets[None]["recurrent"],
        }
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

    def copies(self, name, unit):
        """Parameters of a module as a set has them, for a dry run: a module that computes with others is found out."""
        out, made = {}, {}
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
                torch.autograd.backward(roots, [torch.ones_like(y) for y in roots])
            times[0].append(middle - begin)
            times[1].append(perf_counter() - middle)
        return sizes, outputs

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
        built = build(**request["args"])
        for framework in FRAMEWORKS:
            if framework.made(built):
                made = framework(self.arena, self.threads, self.program)
                made.function = loss
                modules = made.build(built)
                self.framework = made
                return {"framework": made.name, "modules": modules}
        kind = ("empty " if isinstance(built, (list, tuple)) and not built else "") + type(built).__name__
        raise Refused(f"{function} returned: {kind}; expected an nn.Sequential of PyTorch or a list of its modules", self.program.at())

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


def main():
    if sys.version_info < (3, 9):
        raise SystemExit(f"{sys.executable} is Python {sys.version.split()[0]}; expected 3.9 or newer")
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        del sys.path[0]  # where this file lies
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
