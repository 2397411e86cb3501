"""Trains a model in two processes over gloo, each with half of its modules and a core, as pipelines are written in PyTorch: gpipe, or 1f1b.

Reads what as JSON from the first argument, and writes the tokens of a second. Without a rank it starts the two processes.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist

WORLD = 2


class Stage:
    """One half of the model, and what it has in flight."""

    def __init__(self, q, user, rank):
        torch.manual_seed(1)
        modules = list(getattr(user, q["function"])(**q["args"]))
        middle = len(modules) // WORLD
        self.modules = torch.nn.Sequential(*(modules[middle:] if rank else modules[:middle]))
        self.optimizer = torch.optim.AdamW(self.modules.parameters(), lr=1e-3)
        self.q, self.loss, self.rank = q, user.loss, rank
        self.held, self.sent = {}, []
        self.shape = (q["samples"] // q["micros"], q["positions"], q["args"]["width"])

    def ids(self):
        return torch.randint(0, self.q["vocabulary"], self.shape[:2])

    def send(self, x, tag):
        x = x.contiguous()
        self.sent.append((dist.isend(x, 1 - self.rank, tag=tag), x))

    def receive(self, tag):
        x = torch.empty(self.shape)
        dist.recv(x, 1 - self.rank, tag=tag)
        return x

    def forward(self, m):
        if self.rank == 0:
            y = self.modules(self.ids())
            self.held[m] = (None, y)
            self.send(y.detach(), m)
        else:
            x = self.receive(m).requires_grad_()
            self.held[m] = (x, self.loss(self.modules(x), self.ids()) / self.q["micros"])

    def backward(self, m):
        x, y = self.held.pop(m)
        if self.rank == 0:
            y.backward(self.receive(self.q["micros"] + m))
        else:
            y.backward()
            self.send(x.grad, self.q["micros"] + m)

    def step(self):
        micros = self.q["micros"]
        ahead = micros if self.q["schedule"] == "gpipe" else min(micros, WORLD - self.rank)
        self.optimizer.zero_grad()
        for m in range(ahead):
            self.forward(m)
        for m in range(micros):
            self.backward(m)
            if ahead + m < micros:
                self.forward(ahead + m)
        for request, _ in self.sent:
            request.wait()
        self.sent.clear()
        self.optimizer.step()


def work(q, rank):
    os.sched_setaffinity(0, {rank})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    spec = importlib.util.spec_from_file_location("user", q["path"])
    user = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(user)
    stage = Stage(q, user, rank)
    for step in range(q["warmup"] + q["steps"]):
        if step == q["warmup"]:
            dist.barrier()
            begin = time.perf_counter()
        stage.step()
    dist.barrier()
    if rank == 0:
        print(q["steps"] * q["samples"] * q["positions"] / (time.perf_counter() - begin))


def main():
    rank = os.environ.get("RANK")
    if rank is not None:
        work(json.loads(sys.argv[1]), int(rank))
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = [subprocess.Popen([sys.executable] + sys.argv, env={**os.environ, **at, "RANK": str(rank)}) for rank in range(WORLD)]
    sys.exit(max(process.wait() for process in both))


main()
