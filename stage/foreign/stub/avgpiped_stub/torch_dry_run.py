"""The dry run of PyTorch's modules."""

from time import perf_counter  # a program may replace that of the module

from .torch_split import Split


class DryRun:
    """Runs each module by itself on made-up inputs, and says what it gives, keeps and takes."""

    def __init__(self, of):
        self.of, self.torch = of, of.torch

    def run(self, request):
        torch, repeat, seed = self.torch, request["repeat"], request["seed"]
        self.of.use(None)
        torch.default_generator.manual_seed(seed)
        begin = perf_counter()
        x, out = self.of.examples(request["inputs"]), []
        loading = perf_counter() - begin
        for number in range(len(self.of.units)):
            found, x = self.probe_module(number, x, repeat, seed)
            out.append(found)
        if self.of.samples is not None:
            self.probe_samples(request["inputs"], out, loading)
        Split(self.of, seed).check(*(self.of.examples(request["inputs"], i) for i in range(2)))
        if self.of.function is not None and request.get("targets"):
            self.probe_loss(x, request)
        return out

    def probe_samples(self, inputs, out, loading):
        """Refuses samples that depend on more than their numbers. Both ends of the model read them, which took so many seconds."""
        for a, b in zip(self.of.examples(inputs), self.of.examples(inputs)):
            if not self.of.same(a, b):
                self.of.samples.refuse("has samples whose inputs differ when they are read again; expected the same of the same number with the same random numbers, of PyTorch, random and numpy.random alone")
        out[0]["inputs"] = [{"shape": inputs[0]["shape"], "type": "i32"}]
        for end in {0, len(out) - 1}:
            out[end]["forward_seconds"] += loading

    def probe_loss(self, outputs, request):
        """Has the user's loss of made-up targets, so that an error in it is seen before the training."""
        targets = self.targets(outputs, request)
        with self.torch.enable_grad():
            leaves = [y.detach().clone().requires_grad_(y.is_floating_point()) for y in outputs]
            loss = self.of.loss_of([y.clone() for y in leaves], targets)
            if not loss.requires_grad:
                self.of.refuse("the loss function gave a number that no gradient flows through; expected one that depends on what the last module gives", self.of.function)
            self.owns_nothing(loss, leaves)
            with self.of.program.calling("the backward of the loss", self.of.function):
                loss.backward()

        self.is_mean(outputs, targets, float(loss), request)

    def owns_nothing(self, loss, given):
        """Refuses a loss that computes with parameters: nothing trains those of its own, and those of the model are others in each pipeline."""
        for p in self.parameters_of([loss], given):
            name = next((full for full, (_, _, q) in self.of.parameters.items() if q is p), None)
            what = f"a parameter of its own, of shape {tuple(p.shape)}, which nothing trains" if name is None else f"parameter {name} of the model, of which it has the value that build made"
            self.of.refuse(f"the loss function computes with {what}; expected that it computes with what the last module gives and with targets, so give it from there, or have requires_grad_(False) of it", self.of.function)

    def parameters_of(self, outputs, given):
        """The parameters that outputs were computed with, but for some that were given."""
        given, seen, nodes = {id(x) for x in given}, {None}, [y.grad_fn for y in outputs]
        while nodes:
            node = nodes.pop()
            if node not in seen:
                seen.add(node)
                end = getattr(node, "variable", None)
                if isinstance(end, self.torch.nn.Parameter) and id(end) not in given:
                    yield end
                nodes += [before for before, _ in node.next_functions]

    def is_mean(self, outputs, targets, whole, request):
        """Refuses a loss that is a sum over samples: the losses of micro-batches are averaged, so what is trained would depend on how many there are."""
        count = request["targets"][0]["shape"][0]
        if count == 1 or any(y.dim() == 0 or y.shape[0] != count for y in outputs):
            return
        try:
            with self.torch.no_grad():
                parts = [float(self.of.loss_of([y[a:b].clone() for y in outputs], self.part_of(targets, a, b))) for a, b in ((0, 1), (1, count))]
        except Exception:  # it cannot be had of fewer samples
            return
        if abs(sum(parts) - whole) <= 1e-4 * abs(whole) and abs((parts[0] + (count - 1) * parts[1]) / count - whole) > 1e-2 * abs(whole):
            self.of.refuse(f"the loss function adds over samples: it gives {whole:.5g} for {count} of them, and {parts[0]:.5g} and {parts[1]:.5g} for the first and the others; expected their mean, since those of micro-batches are averaged: divide it by their number", self.of.function)

    def part_of(self, targets, begin, end):
        """The targets of some of the samples, made anew where the user's program makes them."""
        if self.of.samples is not None:
            return self.of.samples.targets(self.of.samples.batch(end)[begin:])
        return tuple(t[begin:end].clone() for t in targets) if isinstance(targets, tuple) else targets[begin:end].clone()

    def targets(self, outputs, request):
        if self.of.samples is not None:
            return self.of.samples.targets(self.of.samples.batch(request["targets"][0]["shape"][0]))
        made = [self.of.example({**t, "limit": t["limit"] or (outputs[0].shape[-1] if outputs[0].dim() else 2)}) for t in request["targets"]]
        if request.get("ignores"):
            made[0].view(-1)[::2] = -1
        return made[0] if len(made) == 1 else tuple(made)

    def probe_module(self, number, inputs, repeat, seed):
        name, unit = self.of.units[number]
        originals = list(self.of.originals(name, unit, self.of.buffers))
        bound = self.of.copied(number, {})
        values = [p.detach().clone() for _, _, _, p, _, _ in bound["parameters"]]
        times, first = ([], []), None
        self.of.install(bound)
        try:
            for _ in range(repeat):
                sizes, outputs, leaves = self.probe_once(number, bound, inputs, seed, times)
                self.unchanged(number, bound, values)
                self.has_all(number, bound, outputs, leaves)
                self.repeats(first, outputs, number)
                first = [y.detach() for y in outputs]
        finally:
            self.of.install(self.of.sets[None])
            for _, m, own, b in originals:
                m._buffers[own] = b
        own = {p.data_ptr() for _, _, _, p, _, _ in bound["parameters"]}
        return {
            "inputs": [self.shape(x, number, f"input {i}") for i, x in enumerate(inputs)] if number or self.of.samples is None else [],
            "outputs": [self.shape(y, number, f"output {i}") for i, y in enumerate(first)],
            "saved_bytes": sum(t.numel() * t.element_size() for at, t in sizes.items() if at not in own),
            "forward_seconds": sorted(times[0])[repeat // 2], "backward_seconds": sorted(times[1])[repeat // 2],
            "differentiable": [y.requires_grad for y in outputs],
        }, first

    def probe_once(self, number, bound, inputs, seed, times):
        torch, request = self.torch, {"first": number, "seeds": [seed], "train": True, "begins": True, "count": False}
        sizes = {}
        with torch.enable_grad():
            leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
            begin = perf_counter()
            with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.setdefault(t.data_ptr(), t) is None or t, lambda t: t):
                outputs = self.of.run(request, bound, [x.clone() for x in leaves])
            self.of.dense(outputs, number)
            middle = perf_counter()
            roots = [y for y in outputs if y.requires_grad]
            if roots:
                self.backward_once(number, roots)
            times[0].append(middle - begin)
            times[1].append(perf_counter() - middle)
        return sizes, outputs, leaves

    def backward_once(self, number, roots):
        try:
            with self.of.program.calling(f"the backward of module {self.of.called(number)}", self.of.source(number)):
                self.torch.autograd.backward(roots, [self.torch.ones_like(y) for y in roots])
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            self.of.refuse_module(number, f"the gradient of module {self.of.called(number)} flows to what another one computed, by another way than its inputs; expected that what it computes with is given to it")

    def unchanged(self, number, bound, values):
        """Refuses a module that has made or changed parameters in its forward."""
        name, unit = self.of.units[number]
        for full, _, _, _ in self.of.tensors(name, unit, "_parameters"):
            if full not in self.of.parameters:
                self.of.refuse_module(number, f"the forward made parameter {full}; expected that build makes them all")
        for full, (_, _, p) in self.of.parameters.items():
            if p.grad is not None:
                p.grad = None
                self.of.refuse_module(number, f"module {self.of.called(number)} computes with parameter {full} from elsewhere than where it is registered; expected that it reads its own attribute, and that a module which shares one has it as an attribute too")
        for (full, _, _, p, _, _), value in zip(bound["parameters"], values):
            if not self.of.same(p.detach(), value):
                self.of.refuse_module(number, f"the forward changed parameter {full}; expected that only the optimizer changes it")

    def has_all(self, number, bound, outputs, leaves):
        """Refuses a module that computes with what is no parameter of any, as of modules in a list of Python: nothing trains it, and no file has it."""
        known = leaves + [p for _, _, _, p, _, _ in bound["parameters"]]
        for p in self.parameters_of(outputs, known):
            self.of.refuse_module(number, f"module {self.of.called(number)} computes with a parameter of shape {tuple(p.shape)} that is none of its parameters(), so that nothing trains it and an export lacks it; expected that it is registered, as by nn.ModuleList or nn.ParameterList, or requires_grad_(False) of it")

    def repeats(self, first, outputs, number):
        """Refuses a module whose outputs depend on more than its inputs and PyTorch's random numbers."""
        if first is None:
            return
        if len(first) != len(outputs):
            self.of.refuse_module(number, f"module {self.of.called(number)} gave {len(first)} and then {len(outputs)} tensors; expected the same of the same inputs")
        for i, (a, b) in enumerate(zip(first, outputs)):
            if a.shape != b.shape:
                self.of.refuse_module(number, f"output {i} of module {self.of.called(number)} has shape {tuple(a.shape)} and then {tuple(b.shape)}; expected the same of inputs of the same shape")
            if not self.of.same(a, b.detach()):
                self.of.refuse_module(number, f"output {i} of module {self.of.called(number)} differs between two forwards with the same inputs and the same seed of PyTorch; expected the same, which recomputation needs")

    def shape(self, x, number, what):
        if x.dtype not in self.of.names:
            self.of.refuse_module(number, f"{what} of module {self.of.called(number)} is of {x.dtype}; expected torch.float32, as of x.float(), torch.int64 or torch.int32")
        if x.numel() == 0:
            self.of.refuse_module(number, f"{what} of module {self.of.called(number)} has no elements: shape {tuple(x.shape)}; expected at least one")
        return {"shape": list(x.shape), "type": self.of.names[x.dtype]}
