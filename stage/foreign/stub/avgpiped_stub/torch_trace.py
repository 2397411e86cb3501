"""What the forward of a PyTorch module does, as torch.fx follows it."""

import functools
import operator
import os
import sys


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
                self.cutter.refuse(f"the forward of the {self.cutter.kind} depends on the number of samples here: {a} and {b} for {self.cutter.COUNTS[0]} and {self.cutter.COUNTS[1]} of them; expected that in a module that no cut is within", self.line())
            return a

    return Tracer
