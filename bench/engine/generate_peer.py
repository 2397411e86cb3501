"""The peer of the part generate: PyTorch continues a sequence with a cache of keys and values, greedily, on one thread.

The cache is allocated once and written in place. GPT-2 blocks (pre-norm, GELU's tanh form), a head of its own, fresh weights. It prints a JSON
line: tokens_per_s is of the tokens after the first.
"""
import argparse
import json
import math
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        d = a.width
        self.heads = a.heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.project = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.register_buffer("keys", torch.zeros(a.heads, a.seq, d // a.heads))
        self.register_buffer("values", torch.zeros(a.heads, a.seq, d // a.heads))

    def forward(self, x, past):  # x: (T,D)
        t, d = x.shape
        q, k, v = (z.view(t, self.heads, -1).transpose(0, 1) for z in self.qkv(self.norm1(x)).split(d, 1))
        self.keys[:, past:past + t], self.values[:, past:past + t] = k, v
        scores = q @ self.keys[:, :past + t].transpose(1, 2) / math.sqrt(d // self.heads)
        if t > 1:
            scores.masked_fill_(torch.ones(t, past + t).triu(past + 1).bool(), float("-inf"))
        x = x + self.project((F.softmax(scores, -1) @ self.values[:, :past + t]).transpose(0, 1).reshape(t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(a.vocab, a.width), nn.Embedding(a.seq, a.width)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, a.vocab, bias=False)

    def forward(self, ids, past):  # the logits (V) after the last of ids (T)
        x = self.tokens(ids) + self.positions(torch.arange(past, past + len(ids)))
        for block in self.blocks:
            x = block(x, past)
        return self.head(self.norm(x[-1]))


def generate(model, prompt, tokens):
    """Returns the seconds that the tokens after the first take."""
    token = model(prompt, 0).argmax()
    start = time.perf_counter()
    for n in range(tokens - 1):
        token = model(token.view(1), len(prompt) + n).argmax()
    return time.perf_counter() - start


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    for name in ("layers", "width", "heads", "seq", "vocab", "prompt", "runs"):
        p.add_argument("--" + name, type=int, required=True)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(a).eval()
    if a.precision == "bf16":
        model = model.bfloat16()
    tokens = a.seq - a.prompt
    with torch.inference_mode():
        prompt = torch.randint(0, a.vocab, (a.prompt,))
        seconds = sorted(generate(model, prompt, tokens) for _ in range(a.runs))[a.runs // 2]
    print(json.dumps({"device": "torch " + torch.__version__, "params": sum(p.numel() for p in model.parameters()),
                      "tokens_per_s": (tokens - 1) / seconds}))


main()
