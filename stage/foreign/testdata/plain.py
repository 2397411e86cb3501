"""Trains users' models as a plain PyTorch program does: reads what and on what as JSON, writes losses and parameters, or their digests, of each."""

import hashlib
import importlib.util
import json
import os
import random
import sys

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # with more it adds products in another order; before torch is imported

import torch
from seeds import MASK, mix, stream


class Own:
    """Samples that the program makes, read as a plain loop over a Dataset does, each with random numbers of its own."""

    def __init__(self, user, own, seed):
        made = getattr(user, own["function"])(**(own["args"] or {}))
        self.parts, self.seed = made if isinstance(made, tuple) else (made,), seed
        self.collate = getattr(user, own["collate"]) if own["collate"] else torch.utils.data.default_collate

    def read(self, numbers):
        samples, count = [], sum(map(len, self.parts))
        for number in numbers:
            seed = mix((mix(self.seed) + number) & MASK)
            random.seed(seed)
            torch.manual_seed(seed)
            index = number % count
            samples.append(self.parts[0][index] if index < len(self.parts[0]) else self.parts[1][index - len(self.parts[0])])
        inputs, targets = self.collate(samples)
        return tuple(inputs) if isinstance(inputs, (tuple, list)) else inputs, targets


class Rounded:
    """Plain gradient descent that rounds the product before the sum, as avgpiped's optimizer does; torch.optim.SGD rounds once."""

    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        with torch.no_grad():
            for p in self.parameters:
                if p.grad is not None:
                    p.sub_(p.grad * self.lr)


def train(q):
    spec = importlib.util.spec_from_file_location("user", q["path"])
    user = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(user)
    torch.manual_seed(q["seed"])
    model = getattr(user, q["function"])(**(q["args"] or {}))
    if isinstance(model, list):
        model = torch.nn.ModuleList(model)
    make = Rounded if q["optimizer"] == "Rounded" else getattr(torch.optim, q["optimizer"])
    optimizer = make(model.parameters(), **q["options"])
    whole, seed = q.get("cut") is not None, None
    for name in q.get("cut") or []:
        model.get_submodule(name).register_forward_pre_hook(lambda module, inputs, name=name: seed(name) and None)
    losses, micros, samples = [], q["micros"], q["samples"]
    own, loss_of = q.get("own") and Own(user, q["own"], q["seed"]), getattr(user, q.get("loss") or "loss")
    for step, batch in enumerate(q["batches"]):
        x = torch.tensor(batch["x"] or batch["ids"]).view(micros, samples, -1)
        y = torch.tensor(batch["y"]).view((micros, samples) if batch["x"] else x.shape)
        optimizer.zero_grad()
        total = 0.0
        key = mix((mix((mix(q["seed"]) + 0) & MASK) + step) & MASK)
        for m in range(micros):
            h, target = own.read(x[m].flatten().tolist()) if own else (x[m], y[m])
            seed = lambda name: torch.manual_seed(mix((mix(key ^ stream(name)) + m * samples) & MASK))
            if whole:
                seed("start" if q["cut"] else "model")
                h = model(*h) if isinstance(h, tuple) else model(h)
            for name, module in [] if whole else model._modules.items():  # named_children leaves out what was met before
                seed(name)
                h = module(*h) if isinstance(h, tuple) else module(h)
            loss = loss_of(h, target)
            (loss / micros).backward()
            total += loss.item() / micros
        optimizer.step()
        losses.append(total)
    values = model.state_dict().items()
    if q["digests"]:
        return {"losses": losses, "digests": {k: hashlib.sha256(v.numpy().tobytes()).hexdigest() for k, v in values}}
    return {"losses": losses, "values": {k: v.double().flatten().tolist() for k, v in values}}


torch.set_num_threads(1)
json.dump([train(q) for q in json.load(sys.stdin)], sys.stdout)
