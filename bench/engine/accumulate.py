#!/usr/bin/python3
"""The peer for small micro-batches: PyTorch trains a GPT-2 with an untied head on one core, adding up the gradients of micro-batches.

Called as `accumulate.py single --precision f32|bf16 --layers .. --width .. --heads .. --seq .. --batch .. --micro .. --vocab .. --steps ..`. Each
step trains `batch` samples in micro-batches of `micro` samples, then AdamW. It prints a JSON line with tokens_per_s.
"""
import argparse
import json
import os
import statistics
import time

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # before the libraries are loaded
os.sched_setaffinity(0, {0})

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402


class Block(nn.Module):
    """x + projection(attention(norm(x))), then x + down(gelu(up(norm(x))))."""

    def __init__(self, width, heads, positions):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        hidden = torch.full((positions, positions), float("-inf")).triu(1)
        self.register_buffer("hidden", hidden, persistent=False)

    def attention(self, x):
        samples, positions, width = x.shape
        shape = (samples, positions, 3, self.heads, width // self.heads)
        query, key, value = self.attend(x).view(shape).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        mixed = functional.softmax(scores + self.hidden, dim=-1).to(value.dtype) @ value
        return self.project(mixed.transpose(1, 2).reshape(samples, positions, width))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


class Model(nn.Module):
    """GPT-2 with an output layer of its own."""

    def __init__(self, a):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(a.vocab, a.width), nn.Embedding(a.seq, a.width)
        self.blocks = nn.Sequential(*(Block(a.width, a.heads, a.seq) for _ in range(a.layers)))
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, a.vocab, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight
        return self.head(self.norm(self.blocks(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["single"])
    parser.add_argument("--precision", choices=["f32", "bf16"], required=True)
    for name in ("layers", "width", "heads", "seq", "batch", "micro", "vocab", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    a = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = lambda: torch.randint(0, a.vocab, (a.micro, a.seq))
    seconds = []
    for _ in range(2 + a.steps):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for _ in range(a.batch // a.micro):
            ids, targets = tokens(), tokens()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16"):
                logits = model(ids)
            loss = functional.cross_entropy(logits.float().view(-1, a.vocab), targets.view(-1))
            (loss * a.micro / a.batch).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"tokens_per_s": a.batch * a.seq / statistics.median(seconds[2:])}))


if __name__ == "__main__":
    main()
