"""The peer of the part torchrun: what PyTorch's elastic launcher starts on each host. It trains a small model with
DistributedDataParallel over gloo, and goes on from the newest checkpoint after a restart, as the launcher's manual has it.

Each step appends a line to a file of the host: the number of the step, which falls back after a restart. Rank 0 writes a checkpoint every so
many steps into a directory that all hosts see, under a temporary name first.
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", required=True, help="the file that steps are noted in")
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
a = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(3)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 256)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
step = 0
if os.path.exists(a.checkpoint):
    saved = torch.load(a.checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]

data = torch.randint(0, 256, (64, 8, 17))
with open(a.steps, "a", buffering=1) as steps:
    while True:  # until it is ended
        batch = data[step % len(data)]
        loss = nn.functional.cross_entropy(model(batch[:, :16]), batch[:, 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        steps.write(f"{step}\n")
        if step % a.every == 0 and dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, a.checkpoint + ".tmp")
            os.replace(a.checkpoint + ".tmp", a.checkpoint)
