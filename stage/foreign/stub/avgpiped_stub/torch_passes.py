"""Passes of PyTorch's modules: memory that they compute with, forwards and backwards."""

from operator import attrgetter, is_

from .arena import NUMBER
from .program import Refused
from .torch_dry_run import DryRun
from .torch_modules import Modules

PARAMETERS, WRITES = attrgetter("_parameters"), attrgetter("_version")


class Torch(Modules):
    """Modules of PyTorch that run."""

    def probe(self, request):
        return DryRun(self).run(request)

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
        if self.samples is not None:
            self.samples.ends(request["first"] == 0, request["last"] == len(self.units))
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
        keep, bound, loss = request.get("keep"), self.use(request["set"]), request.get("loss")
        self.drop(keep)
        with self.torch.set_grad_enabled(keep is not None):
            if self.samples is not None and request["first"] == 0:
                leaves, given = [None], self.bring(self.samples.inputs(self.place(request["inputs"][0]).tolist()))
            else:
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
            x, leaf = self.bring(self.place(t)), None
            if backward and t["gradient"]:
                x = leaf = x.detach().requires_grad_()
            leaves.append(leaf)
            given.append(x.long() if t["type"] == "i32" else x.clone())
        return leaves, given

    @staticmethod
    def bring(x):
        """What is in the host's memory, where the modules compute."""
        return x

    def place(self, t, shape=None):
        """The tensor that a part of a request names, which is made once, however often the request is repeated."""
        view = t.get("view")
        if view is None:
            view = t["view"] = self.view(t["at"], t["shape"] if shape is None else shape, t.get("type", "f32"))
        return view

    def run(self, request, bound, inputs):
        train, tensor, seed_next = request["train"], self.torch.Tensor, self.generators[0].manual_seed if len(self.generators) == 1 else self.seed
        for module, own, value, total in bound["buffers"]:
            now = value if request["begins"] or total is None else total
            module._buffers[own] = now.to(self.device, module._buffers[own].dtype, copy=True)  # a graph in flight may have the one before
        number = request["first"]
        try:
            for number, seed in enumerate(request["seeds"], number):
                self.train(number, train)
                given = inputs if self.spread or len(inputs) == 1 else [tuple(inputs)]
                seed_next(seed)
                x = self.units[number][1](*given)
                inputs = [x] if type(x) is tensor else self.flatten(x, number)
        except Exception as error:
            shapes = " and ".join(f"{x.dtype} of shape {tuple(x.shape)}" for x in inputs)
            self.program.name(error, f"module {self.called(number)}, which was given {'a tuple of ' * (len(given) < len(inputs))}{shapes}", self.source(number))
            raise
        if request["count"]:
            for module, own, _, total in bound["buffers"]:
                total.copy_(module._buffers[own], non_blocking=True)
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
            if y.layout != self.torch.strided or y.device.type != self.device.type:
                self.refuse_module(number, f"output {i} of module {self.called(number)} is on {y.device} and of layout {y.layout}; expected a dense tensor of the {'processor' if self.device.type == 'cpu' else 'GPU'}")

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
            self.place(t).copy_(y.detach(), non_blocking=True)

    def backward(self, request):
        if request["keep"] not in self.kept:
            raise Refused(f"nothing is kept as {request['keep']!r}; expected what a forward kept and no backward has used")
        name, leaves, outputs, forward = self.kept.pop(request["keep"])
        bound = self.use(name)
        for number in range(forward["first"], forward["first"] + len(forward["seeds"])):
            self.train(number, forward["train"])  # a checkpoint within it runs forward again
        if forward.get("loss") is not None:
            roots, given = outputs, [self.torch.tensor(request["weight"], dtype=self.torch.float32, device=self.device)]
        else:
            flowing = [(y, t) for y, t in zip(outputs, request["doutputs"]) if t is not None and y.requires_grad]
            roots, given = [y for y, _ in flowing], [self.bring(self.place(t, list(y.shape))) for y, t in flowing]
        if roots and roots[0].requires_grad:
            with self.program.calling(f"the backward of module {self.called(number)}" + " and those in front of it" * (number > forward["first"]), self.source(number)):
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
            to.copy_(leaf.grad, non_blocking=True)

    def loss(self, outputs, wanted):
        """The user's loss of what the last module gave, and of targets: one number, which is written where it is wanted."""
        if self.function is None:
            raise Refused("a forward with a loss after a build that named no function for it; expected one with a name")
        targets = [self.place(t) for t in wanted["targets"]]
        if self.samples is not None:
            counting = [number for number in targets[0].tolist() if number >= 0]
            loss = self.loss_of([y[:len(counting)] for y in outputs], self.bring(self.samples.targets(counting)))
        else:
            targets = [x.long() if x.dtype == self.torch.int32 else x.clone() for x in map(self.bring, targets)]
            loss = self.loss_of(outputs, targets[0] if len(targets) == 1 else tuple(targets))
        self.arena.check(wanted["at"], 4)
        NUMBER.pack_into(self.arena.memory, wanted["at"], loss.item())
        return loss

    def loss_of(self, outputs, targets):
        torch, function = self.torch, self.function
        with self.program.calling("the loss function", function):
            loss = function(outputs[0] if len(outputs) == 1 else tuple(outputs), targets)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0 or loss.dtype != torch.float32:
            found = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            self.refuse(f"the loss function gave {found}; expected a tensor of torch.float32 with one number, of shape ()", function)
        return loss

    def copied(self, number, made):
        """A set of a module, for a dry run: a module that computes with other parameters is found out. Those that are tied are made once."""
        name, unit = self.units[number]
        return {
            "parameters": self.copied_parameters(name, unit, made),
            "buffers": [(m, own, b.to(self.torch.float32, copy=True), None) for _, m, own, b in self.originals(name, unit, self.buffers)],
            "recurrent": self.sets[None]["recurrent"],
        }

    def copied_parameters(self, name, unit, made):
        out = {}
        for full, module, own, p in self.originals(name, unit, self.parameters):
            p.grad = None
            if p not in made:
                made[p] = self.torch.nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)
            out.setdefault((module, own), (full, module, own, made[p], None, 0))
        return list(out.values())
