"""Modules of PyTorch one by one, and in one graph."""


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
        largest = float(b.abs().nan_to_num(0, 0).max())
        return self.torch.allclose(a, b, rtol=1e-3, atol=1e-5 * (largest or 1), equal_nan=True)

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
