"""Runs forwards and backwards of a model in this process, as a plain PyTorch program does: reads how many, writes the seconds that they took."""

import importlib.util
import json
import sys
import time

import torch


def main():
    torch.set_num_threads(1)
    q = json.loads(sys.stdin.readline())
    spec = importlib.util.spec_from_file_location("user", q["path"])
    user = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(user)
    torch.manual_seed(1)
    model = getattr(user, q["function"])(**q["args"])
    ids = torch.randint(0, q["vocabulary"], (q["samples"], q["positions"]))
    targets = torch.randint(0, q["vocabulary"], (q["samples"], q["positions"]))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            user.loss(model(ids), targets).backward()
        print(time.perf_counter() - begin, flush=True)


main()
