"""The dry run of modules of a framework whose tensors cannot lie in the arena."""

from time import perf_counter  # a program may replace that of the module

from .copies import TYPES, Run


class DryRun:
    """Runs each module by itself on made-up inputs, and holds what they give one by one against what they give together."""

    def __init__(self, of):
        self.of, self.numpy = of, of.numpy

    def run(self, request):
        random = self.numpy.random.RandomState(request["seed"] % (1 << 32))
        first = [self.of.example(t, random) for t in request["inputs"]]
        x, flows, out, ran = first, [False] * len(first), [], []
        for number in range(len(self.of.units)):
            found, run = self.module(number, x, flows, request)
            out.append(found)
            ran.append(run)
            x, flows = [self.of.array(y) for y in run.outputs], found["differentiable"]
        self.together(first, ran, request["seed"])
        if self.of.function is not None and request.get("targets"):
            self.loss(ran[-1], x, flows, request, random)
        return out

    def made(self, first, last, x, flows, seed):
        """A forward of modules with the values of build."""
        run = Run(first, [(seed + number) % (1 << 64) for number in range(first, last)], True, True)
        for tensors in self.of.tensors[first:last]:
            run.parameters.append([self.of.own(t.value.copy()) for t in tensors if not t.statistic])
            run.trained.append([t.trained for t in tensors if not t.statistic])
            run.statistics.append([self.of.own(t.value.copy()) for t in tensors if t.statistic])
        run.inputs, run.flows = [self.of.own(v.copy()) for v in x], flows
        return run

    def module(self, number, x, flows, request):
        of, repeat, times, before = self.of, request["repeat"], ([], []), None
        for _ in range(repeat):
            run = self.made(number, number + 1, x, flows, request["seed"])
            begin = perf_counter()
            of.compute(run)
            outputs = [of.array(y) for y in run.outputs]
            saved = of.saved(run)
            middle = perf_counter()
            differentiable = [y.dtype == "float32" and (any(flows) or any(run.trained[0])) for y in outputs]
            if any(differentiable):
                gradients, dinputs = run.backward(self.ones(outputs, differentiable))
                if any(flows) and all(dx is None for dx in dinputs):
                    of.refuse_module(number, f"no gradient flows from the outputs of module {of.called(number)} to any of its inputs, so that nothing in front of it learns; expected that one does")
                for gradient in gradients[0]:
                    if gradient is not None:
                        of.array(gradient)  # a framework may compute later what nobody has asked for
            times[0].append(middle - begin)
            times[1].append(perf_counter() - middle)
            self.repeats(before, outputs, number)
            before = outputs
        return {
            "inputs": [self.shape(v, number, f"input {i}") for i, v in enumerate(x)],
            "outputs": [self.shape(y, number, f"output {i}") for i, y in enumerate(outputs)],
            "saved_bytes": saved, "differentiable": differentiable,
            "forward_seconds": sorted(times[0])[repeat // 2], "backward_seconds": sorted(times[1])[repeat // 2],
        }, run

    def ones(self, outputs, differentiable):
        return [self.of.own(self.numpy.ones(y.shape, "float32")) if flows else None for y, flows in zip(outputs, differentiable)]

    def repeats(self, first, outputs, number):
        """Refuses a module whose outputs depend on more than its inputs and the framework's random numbers."""
        of = self.of
        if first is None:
            return
        if len(first) != len(outputs):
            of.refuse_module(number, f"module {of.called(number)} gave {len(first)} and then {len(outputs)} tensors; expected the same of the same inputs")
        for i, (a, b) in enumerate(zip(first, outputs)):
            if a.shape != b.shape:
                of.refuse_module(number, f"output {i} of module {of.called(number)} has shape {a.shape} and then {b.shape}; expected the same of inputs of the same shape")
            if not self.numpy.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                of.refuse_module(number, f"output {i} of module {of.called(number)} differs between two forwards with the same inputs and the same random numbers; expected the same, which recomputation needs")

    def shape(self, x, number, what):
        kind = TYPES.get(str(x.dtype))
        if kind is None:
            self.of.refuse_module(number, f"{what} of module {self.of.called(number)} is of {x.dtype}; expected float32, int32 or int64")
        if x.size == 0:
            self.of.refuse_module(number, f"{what} of module {self.of.called(number)} has no elements: shape {x.shape}; expected at least one")
        return {"shape": list(x.shape), "type": kind}

    def together(self, x, ran, seed):
        """Runs all modules as one forward, and compares what they give and their gradients with the same of modules one by one."""
        of = self.of
        whole = self.made(0, len(ran), x, [False] * len(x), seed)
        of.compute(whole)
        last = len(ran) - 1
        wanted, found = [of.array(y) for y in ran[last].outputs], [of.array(y) for y in whole.outputs]
        if len(wanted) != len(found) or not all(map(self.near, wanted, found)):
            of.refuse_module(last, "modules give something else one by one than together; expected that each depends on its inputs, its parameters and its random numbers alone")
        back = [of.own(self.numpy.cos(self.numpy.arange(y.size)).reshape(y.shape).astype("float32")) if y.dtype == "float32" else None for y in found]
        if not any(any(trained) for trained in whole.trained) or all(dy is None for dy in back):
            return
        expected, _ = whole.backward(back)
        alone = [None] * len(ran)
        flows, again = [False] * len(x), []  # again: a tape gives gradients once
        for number in range(len(ran)):
            run = self.made(number, number + 1, x, flows, seed)
            of.compute(run)
            again.append(run)
            x = [of.array(y) for y in run.outputs]
            flows = [y.dtype == "float32" and (any(flows) or any(run.trained[0])) for y in x]
        for number in reversed(range(len(ran))):
            gradients, back = again[number].backward(back) if any(dy is not None for dy in back) else ([[None] * len(again[number].trained[0])], [None] * len(again[number].inputs))
            alone[number] = gradients[0]
        self.gradients(alone, expected)

    def gradients(self, alone, expected):
        """Compares gradients, of which those that are tied are added: a framework may add them all to the first."""
        of, sums = self.of, {}
        for number, tensors in enumerate(of.tensors):
            for i, t in enumerate(t for t in tensors if not t.statistic):
                one = sums.setdefault(t.name if t.same is None else t.same, [number, t, 0, 0])
                for at, gradient in ((2, alone[number][i]), (3, expected[number][i])):
                    if gradient is not None:
                        one[at] = one[at] + of.array(gradient)
        for number, t, a, b in sums.values():
            if not self.near(self.numpy.asarray(a), self.numpy.asarray(b)):
                of.refuse_module(number, f"the gradient of parameter {t.name} is another when modules run one by one than when all are one graph; expected that a module depends on its inputs alone")

    def near(self, a, b):
        if a.shape != b.shape and a.size != 1 and b.size != 1:
            return False
        return self.numpy.allclose(a, b, rtol=1e-3, atol=1e-5 * (float(abs(b).max()) or 1), equal_nan=True)

    def loss(self, run, outputs, flows, request, random):
        """Has the user's loss of made-up targets, so that an error in it is seen before the training."""
        of = self.of
        targets = [of.example({**t, "limit": t["limit"] or (outputs[0].shape[-1] if outputs[0].ndim else 2)}, random) for t in request["targets"]]
        if request.get("ignores"):
            targets[0].reshape(-1)[::2] = -1
        last = len(of.units) - 1
        made = self.made(last, last + 1, [of.array(x) for x in run.inputs], run.flows, request["seed"])
        made.targets = [of.own(t) for t in targets]
        of.compute(made)
        if any(flows):
            made.backward([of.own(self.numpy.array(1, "float32"))])
