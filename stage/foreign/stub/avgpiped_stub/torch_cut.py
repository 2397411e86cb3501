"""A module of PyTorch that is cut into several."""

import bisect
import contextlib
import difflib
import itertools
import operator
import os
import traceback

from .program import Refused, message
from .torch_trace import tracer


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
                is_device = isinstance(found[0], self.torch.device) and sized is not None
                return g.call_function(getattr, (raw[sized], "device")) if is_device else found[0]  # it was traced on the processor
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
