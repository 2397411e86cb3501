#!/usr/bin/python3
"""Trains replicas of a GPT-2 with PyTorch's own data parallelism, averaging and optimizers: the second source of package pipeline.

Standard input is a JSON list of cases: the model's config and weights by name; batches, of each replica and step token ids
and what they are to predict; how replicas share what they learn (method and what it reads); the optimizer with its
hyperparameters; the rate of every step; clip, 0 for none; and held_out, the batches that the center is evaluated on before the first round
and after each, of tau steps.

Each replica is a process, and they speak through gloo. Standard output is a list of {"losses", "norms": [replica][step],
"evaluations": [round]} in float64.

 - allreduce is DistributedDataParallel.
 - localsgd is PostLocalSGDOptimizer with a PeriodicModelAverager.
 - diloco takes its outer step by optim.SGD with Nesterov's momentum.
 - pipesgd, and the first layers with sapipe, so many as late says, take the mean gradient of the step before, and in the first step none. sapipe
   computes with a copy of model and optimizer whose late layers have taken one more step, by the gradient that predicts.
"""
import copy
import datetime
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn import functional as F


class GPT2(nn.Module):
    """forward(ids, labels) is the mean loss. The projection to the vocabulary is the token embedding."""

    def __init__(self, c, weights):
        super().__init__()
        width = c["n_embd"]
        self.wte, self.wpe = nn.Embedding(c["vocab_size"], width), nn.Embedding(c["n_positions"], width)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(width, c["n_head"], 4 * width, 0.0, lambda x: F.gelu(x, approximate="tanh"), 1e-5, True, True)
            for _ in range(c["n_layer"]))
        self.ln_f = nn.LayerNorm(width)
        self.future = torch.ones(c["n_positions"], c["n_positions"], dtype=torch.bool).triu(1)
        self.load_state_dict({self.name(n): torch.tensor(w["values"]).reshape(w["shape"]).T if n.endswith("weight") and ".c_" in n else
                              torch.tensor(w["values"]).reshape(w["shape"]) for n, w in weights.items()})

    @staticmethod
    def name(n):
        """What a parameter of Hugging Face's GPT-2 is called here."""
        for theirs, ours in (("transformer.", ""), ("ln_1", "norm1"), ("ln_2", "norm2"), ("attn.c_attn.", "self_attn.in_proj_"),
                             ("attn.c_proj", "self_attn.out_proj"), ("mlp.c_fc", "linear1"), ("mlp.c_proj", "linear2")):
            n = n.replace(theirs, ours)
        return n

    def layer_of(self, name):
        """The layer that a parameter is of, counted from the input; that of the embedding is 0."""
        return 0 if name.startswith("wt") or name.startswith("wp") else 1 + int(name.split(".")[1]) if name.startswith("h.") else 1 + len(self.h)

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        for block in self.h:
            x = block(x, self.future)
        return F.cross_entropy(F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1), labels.flatten())


def optimizer_of(model, hyper):
    """Weights of norms and biases do not decay."""
    hyper = dict(hyper)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[hyper.pop("kind")]
    return kind([{"params": [p for p in model.parameters() if p.dim() >= 2]},
                 {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}], lr=1.0, **hyper)


def tensors(batch):
    return torch.tensor(batch["ids"]), torch.tensor(batch["labels"])


def mean(of):
    """The means over all replicas."""
    of = list(of)
    whole = nn.utils.parameters_to_vector([x.detach() for x in of])
    dist.all_reduce(whole)
    return [x.view_as(like) for x, like in zip((whole / dist.get_world_size()).split([x.numel() for x in of]), of)]


class Replica:
    """One replica of a case. step(s, rate) trains a batch and leaves in self.model what the next one is computed with."""

    def __init__(self, case, rank):
        self.case, self.batches = case, case["batches"][rank]
        self.model = GPT2(case["config"], case["weights"])
        self.optimizer = optimizer_of(self.model, case["optimizer"])
        self.losses, self.norms = [], []

    def gradient(self, s, model):
        self.optimizer.zero_grad(set_to_none=False)
        loss = model(*tensors(self.batches[s]))
        loss.backward()
        self.losses.append(loss.item())

    def update(self, rate):
        norm = 0.0
        if self.case["clip"]:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.case["clip"]).item()
        self.norms.append(norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def evaluate(self, done):
        """The loss of the center after so many rounds: the mean of the replicas."""
        center = copy.deepcopy(self.model)
        with torch.no_grad():
            for p, x in zip(center.parameters(), mean(self.model.parameters())):
                p.copy_(x)
            return center(*tensors(self.case["held_out"][done])).item()


class AllReduce(Replica):
    def __init__(self, case, rank):
        super().__init__(case, rank)
        self.parallel = nn.parallel.DistributedDataParallel(self.model)

    def step(self, s, rate):
        self.gradient(s, self.parallel)
        self.update(rate)


class LocalSGD(Replica):
    def __init__(self, case, rank):
        super().__init__(case, rank)
        averager = PeriodicModelAverager(period=case["tau"], warmup_steps=case["tau"] - 1)  # it would average after the first step
        self.optimizer = PostLocalSGDOptimizer(self.optimizer, averager)

    def step(self, s, rate):
        self.gradient(s, self.model)
        self.update(rate)


class DiLoCo(Replica):
    def __init__(self, case, rank):
        super().__init__(case, rank)
        self.center = copy.deepcopy(self.model)
        self.outer = torch.optim.SGD(self.center.parameters(), case["outer_rate"], case["outer_momentum"], nesterov=True)

    def step(self, s, rate):
        self.gradient(s, self.model)
        self.update(rate)
        if (s + 1) % self.case["tau"] == 0:
            for p, x in zip(self.center.parameters(), mean(self.model.parameters())):
                p.grad = p.detach() - x
            self.outer.step()
            self.model.load_state_dict(self.center.state_dict())


class Late(Replica):
    """pipesgd, and sapipe where there is a prediction. Optimizers pass over a parameter that has no gradient."""

    def __init__(self, case, rank):
        super().__init__(case, rank)
        self.late = [self.model.layer_of(name) < case["late"] for name, _ in self.model.named_parameters()]
        self.computing = self.model  # what batches are computed with
        self.before = self.own_before = [None] * len(self.late)

    def step(self, s, rate):
        for p in self.computing.parameters():
            p.grad = None
        self.gradient(s, self.computing)
        own = [p.grad.clone() for p in self.computing.parameters()]
        synchronous = mean(own)
        self.set_gradients(self.model, [before if late else now for late, before, now in zip(self.late, self.before, synchronous)])
        self.update(rate)
        if self.case["prediction"]:
            self.computing = self.predict([self.predicted(*of) if late else None for late, *of in zip(self.late, own, self.own_before, self.before)])
        self.before, self.own_before = synchronous, own

    @staticmethod
    def set_gradients(model, gradients):
        for p, g in zip(model.parameters(), gradients):
            p.grad = None if g is None else g.clone()

    def predicted(self, own, own_before, before):
        """The gradient that stands for the mean of this step."""
        if self.case["prediction"] == "local":
            return own
        if self.case["prediction"] == "prev_sync" or before is None:
            return before
        return before + (own - own_before) / dist.get_world_size()

    def predict(self, gradients):
        """A copy that takes one more step, at the rate of the next."""
        copied = copy.deepcopy(self.model)
        optimizer = optimizer_of(copied, self.case["optimizer"])
        optimizer.load_state_dict(self.optimizer.state_dict())
        for group in optimizer.param_groups:
            group["lr"] = self.case["rates"][len(self.losses)]
        self.set_gradients(copied, gradients)
        optimizer.step()
        return copied


METHODS = {"allreduce": AllReduce, "localsgd": LocalSGD, "diloco": DiLoCo, "pipesgd": Late, "sapipe": Late}


def run(case, rank):
    replica = METHODS[case["method"]](case, rank)
    evaluations = [replica.evaluate(0)]
    for s in range(len(replica.batches)):
        replica.step(s, case["rates"][s])
        if (s + 1) % case["tau"] == 0:
            evaluations.append(replica.evaluate(len(evaluations)))
    return {"losses": replica.losses, "norms": replica.norms, "evaluations": evaluations}


def serve(rank, replicas, directory, cases):
    """One replica of all cases."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=f"file://{directory}/{replicas}", rank=rank, world_size=replicas,
                            timeout=datetime.timedelta(minutes=5))
    with open(f"{directory}/{replicas}.{rank}", "w", encoding="utf-8") as file:
        json.dump([run(case, rank) for case in cases], file)
    dist.destroy_process_group()


def main():
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    cases = json.load(sys.stdin)
    answers = [None] * len(cases)
    with tempfile.TemporaryDirectory() as directory:
        for replicas in sorted({len(case["batches"]) for case in cases}):
            at = [i for i, case in enumerate(cases) if len(case["batches"]) == replicas]
            processes.start_processes(serve, (replicas, directory, [cases[i] for i in at]), replicas, start_method="fork")
            parts = []
            for rank in range(replicas):
                with open(f"{directory}/{replicas}.{rank}", encoding="utf-8") as file:
                    parts.append(json.load(file))
            for i, of in zip(at, zip(*parts)):
                answers[i] = {"losses": [r["losses"] for r in of], "norms": [r["norms"] for r in of], "evaluations": of[0]["evaluations"]}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
