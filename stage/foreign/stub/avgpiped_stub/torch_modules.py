"""What the user's build returned of PyTorch: its modules, their parameters and running statistics."""

import sys

from .framework import Framework
from .program import Refused
from .torch_cut import Cutter


class Modules(Framework):
    """Modules of PyTorch, 1.13 or newer: what there is of them after build."""

    package, returns = "torch", "a module of PyTorch or a list of them"

    def __init__(self, *of):
        import torch

        super().__init__(*of)
        self.torch, self.name = torch, f"torch {torch.__version__}"
        torch.set_num_threads(self.threads)
        self.device, self.generators = torch.device("cpu"), [torch.default_generator]  # what the modules compute on, and what their random numbers come from
        self.types = {"f32": torch.float32, "i32": torch.int32}
        self.names = {torch.float32: "f32", torch.int64: "i32", torch.int32: "i32"}
        self.whole = None  # the one module that build returned, of which the units are parts
        self.owners = {}  # by name of a parameter or a running statistic: the unit that has it under this name
        self.spread = False  # a tuple goes to a module as several arguments
        self.parameters = {}  # by name: (module, name in it, value)
        self.buffers = {}  # the same, of running statistics
        self.sets, self.current = {}, None

    @staticmethod
    def made(built):
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        return isinstance(built, torch.nn.Module) or isinstance(built, (list, tuple)) and any(isinstance(m, torch.nn.Module) for m in built)

    @staticmethod
    def begin(seed):
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed)

    def read(self, samples):
        if samples is not None:
            self.samples, samples.framework = samples, self

    def build(self, built, cut, inputs):
        # Into the modules of a Sequential or of a list, or one module where it is to be cut.
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
            examples = [self.examples([{**t, "shape": [n] + t["shape"][1:]} for t in inputs]) for n in Cutter.COUNTS]
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

    def refuse_module(self, number, text):
        self.refuse(text, self.source(number))

    def source(self, number):
        """The function that says what a module does."""
        return type(self.units[number][1] if self.whole is None else self.whole).forward

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

    # What samples.py asks for.

    def reading(self):
        """Samples are no part of a graph, also where they are made within a forward."""
        return self.torch.no_grad()

    def own_memory(self, inputs):
        return [x.clone() for x in inputs]

    def seed(self, seed):
        for generator in self.generators:
            generator.manual_seed(seed)

    def stack(self, samples):
        return self.torch.utils.data.default_collate(samples)

    def no_inputs(self, inputs, count):
        """What is wrong with the inputs of so many samples; "": nothing."""
        for x in inputs:
            if not isinstance(x, self.torch.Tensor):
                return f"of {type(x).__name__}; expected a tensor, or a tuple of tensors"
            if x.dim() == 0 or x.shape[0] != count:
                return f"of shape {tuple(x.shape)} for {count} of them; expected {count} as their first dimension"
        return "" if inputs else "none; expected a tensor, or a tuple of tensors"

    def examples(self, inputs, batch=0):
        """Inputs of the first module to try it with: made up, or a batch of the user's samples."""
        if self.samples is not None:
            return self.samples.inputs(self.samples.batch(inputs[0]["shape"][0], batch))
        return [self.example(t) for t in inputs]

    def example(self, t):
        if t["type"] == "i32":
            return self.torch.randint(0, t["limit"] or 2, t["shape"])
        return self.torch.rand(t["shape"], dtype=self.torch.float32, requires_grad=t.get("gradient", False))  # whatever the default of the user's program

    def write(self, name, at):
        found = self.parameters.get(name) or self.buffers.get(name)
        if found is None:
            raise Refused(f"no parameter or running statistic {name!r}; expected one that build made")
        value = found[2].detach()
        self.view(at, list(value.shape), "f32").copy_(value)
