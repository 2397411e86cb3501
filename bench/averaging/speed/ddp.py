"""The peer of the speed benchmark: data parallelism with PyTorch's DistributedDataParallel over gloo.

One process a replica, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME in its environment. The model is the
GPT-2 that the benchmark's own jobs train: pre-norm blocks, GELU by tanh, an output projection of its own. AdamW, f32, one thread.

With --forward and --backward a pass takes that long, as on a faster device than the core that computes: the head has the share of the backward
that --head says, for its forward as well, the blocks divide the rest evenly, and each ends when its share is over. What DistributedDataParallel overlaps, it overlaps as it would there.

Rank 0 prints one line of JSON: seconds of a step, of a step without any exchange, and what a step costs in processor time and in bytes sent.
"""
import argparse
import json
import math
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Clock:
    """The moments at which passes of blocks end on the device whose times are dictated."""

    def __init__(self):
        self.until = 0.0

    def start(self):
        self.until = time.perf_counter()

    def spend(self, seconds, ahead=0.0):
        """Waits until the seconds are over, less what is still to be computed in them."""
        self.until += seconds
        left = self.until - ahead - time.perf_counter()
        if left > 0:
            time.sleep(left)


class Mark(torch.autograd.Function):
    """Stands behind a block: its backward comes just before that of the block."""

    @staticmethod
    def forward(ctx, x, before):
        ctx.before = before
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        ctx.before()
        return dx, None


class Block(nn.Module):
    def __init__(self, width, heads, sequence):
        super().__init__()
        self.heads = heads
        self.ln_1, self.attend, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln_2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.future = torch.triu(torch.full((sequence, sequence), float("-inf")), 1)  # (T,T)

    def forward(self, x):  # x: (B,T,C)
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in self.attend(self.ln_1(x)).split(c, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(c // self.heads)
        weights = functional.softmax(scores + self.future, -1)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """forward(x, y) is the loss. dictated: None, or the seconds of a forward and a backward of all blocks."""

    def __init__(self, a, dictated):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(a.vocabulary, a.width), nn.Embedding(a.sequence, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads, a.sequence) for _ in range(a.layers))
        self.norm, self.head = nn.LayerNorm(a.width), nn.Linear(a.width, a.vocabulary, bias=False)
        if a.tied:
            self.head.weight = self.tokens.weight
        self.dictated, self.clock = dictated, Clock()
        self.head_share = a.head
        self.takes = [0.0] * a.layers  # the arithmetic of each block's backward, as it was last
        self.running, self.since = None, 0.0

    def forward(self, x, y):
        if self.dictated:
            self.clock.start()
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for i, block in enumerate(self.blocks):
            h = block(h)
            if self.dictated:
                h = Mark.apply(h, lambda i=i: self.begin(i))
                if i + 1 < len(self.blocks):
                    self.clock.spend(self.dictated[0] / len(self.blocks))
        loss = functional.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())
        if self.dictated:
            self.clock.spend(self.dictated[0] / len(self.blocks))
        return loss

    def begin(self, i):
        """The backward of a block begins: its arithmetic is done at the end of the time that is dictated for it, so that gradients are ready then."""
        self.end()
        share = (1 - self.head_share) / len(self.blocks)
        if i + 1 == len(self.blocks):
            share += self.head_share  # its backward comes first
        self.clock.spend(self.dictated[1] * share, self.takes[i])
        self.running, self.since = i, time.perf_counter()

    def end(self):
        """The backward of the block that was begun last has ended."""
        if self.running is not None:
            self.takes[self.running] = time.perf_counter() - self.since
            self.running = None


def sent():
    """The bytes that the interface of this host has sent."""
    with open("/proc/self/net/dev", encoding="ascii") as table:
        for line in table:
            name, _, counts = line.partition(":")
            if name.strip() == os.environ["GLOO_SOCKET_IFNAME"]:
                return int(counts.split()[8])
    raise SystemExit("ddp.py: /proc/self/net/dev has no interface " + os.environ["GLOO_SOCKET_IFNAME"])


def measure(a):
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    alone = GPT(a, (a.forward, a.backward) if a.forward else None)
    model = nn.parallel.DistributedDataParallel(alone, broadcast_buffers=False, bucket_cap_mb=a.bucket, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    with open(a.data, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    choose = torch.Generator().manual_seed(rank)

    def step():
        at = torch.randint(0, len(text) - a.sequence - 1, (a.batch,), generator=choose)
        samples = torch.stack([text[i:i + a.sequence + 1] for i in at])
        optimizer.zero_grad(set_to_none=False)
        model(samples[:, :-1], samples[:, 1:]).backward()
        alone.end()
        optimizer.step()

    def steps(n):
        dist.barrier()
        began = time.perf_counter(), time.process_time(), sent()
        for _ in range(n):
            step()
        return [(end - start) / n for end, start in zip((time.perf_counter(), time.process_time(), sent()), began)]

    def enough(seconds, least):  # as many steps as rank 0 says
        n = torch.tensor([max(least, math.ceil(a.seconds / seconds))])
        dist.broadcast(n, 0)
        return int(n)

    with model.no_sync():
        seconds, _, _ = steps(2)
        computing, _, _ = steps(enough(2 * seconds, 3))
    optimizer.zero_grad(set_to_none=False)
    warm, _, _ = steps(a.warmup)
    count = enough(warm, a.least)
    seconds, processor, traffic = steps(count)
    if rank == 0:
        print(json.dumps({
            "torch": torch.__version__, "parameters": sum(p.numel() for p in alone.parameters()), "steps": count, "step_s": seconds,
            "alone_s": computing, "cpu_s": processor, "sent_bytes": traffic,
        }), flush=True)
    dist.barrier()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "width", "heads", "sequence", "vocabulary", "batch"):
        p.add_argument("--" + name, type=int, required=True)
    p.add_argument("--data", required=True, help="a file whose bytes are the tokens")
    p.add_argument("--bucket", type=float, default=25, help="bucket_cap_mb")
    p.add_argument("--warmup", type=int, default=3, help="steps before those that are measured")
    p.add_argument("--least", type=int, default=4, help="steps that are measured at least")
    p.add_argument("--seconds", type=float, default=5, help="that are measured about")
    p.add_argument("--forward", type=float, default=0, help="seconds that a forward takes; 0: what the core needs")
    p.add_argument("--backward", type=float, default=0)
    p.add_argument("--head", type=float, default=0, help="share of the backward that is the head's")
    p.add_argument("--tied", action="store_true", help="the head has the weights of the embedding")
    measure(p.parse_args())


if __name__ == "__main__":
    main()
