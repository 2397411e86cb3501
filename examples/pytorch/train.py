#!/usr/bin/python3
"""Trains the model of an example job in plain PyTorch: the same data, budget, optimizer and schedule, read from the job file.

    OPENBLAS_CORETYPE=Cooperlake /usr/bin/python3 train.py ../gpt2.yaml      (Debian: python3-torch, python3-yaml)

Several pipelines that consume a batch each become one batch as large as all of theirs, so samples and steps are the job's. It
prints one JSON line: loss in nats and metrics on all held-out samples, after the last step.
"""
import argparse
import json
import math
import os
import time

import torch
import yaml
from torch.nn import functional as F

import data
import recurrent
import transformers
import vision


def build(job):
    """The model of a job, its task and the length of its samples."""
    family, c = job["model"]["family"], {k: number(v) for k, v in job["model"]["config"].items()}
    if family == "gpt2":
        return transformers.GPT2(c), "language", c["n_positions"]
    if family == "llama":
        return transformers.Llama(c), "language", c["max_position_embeddings"]
    if family == "bert" and c.get("architectures") == "BertForMaskedLM":
        return transformers.BERT(c, 0), "masked", c["max_position_embeddings"]
    if family == "bert":
        return transformers.BERT(c, c.get("num_labels", 2)), "classification", c["max_position_embeddings"]
    if family == "awd-lstm":
        return recurrent.AWDLSTM(c), "language", c["bptt"]
    if family == "gnmt":
        return recurrent.GNMT(c), "translation", c["max_length"]
    return vision.build(family, c), "images", 0


def number(value):
    """YAML 1.1, which PyYAML reads, takes 1e-3 for text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def optimizer_of(model, o):
    """Weight decay applies to matrices only, as in avgpiped."""
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": o.get("weight_decay", 0)},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    name, lr = o.get("name", "adamw"), o["lr"]
    if name == "sgd":
        return torch.optim.SGD(groups, lr, o.get("momentum", 0.0), nesterov=o.get("nesterov", False))
    if name == "asgd":
        return torch.optim.ASGD(groups, lr, lambd=0.0, t0=o.get("t0", 0))
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(groups, lr, tuple(o.get("betas", (0.9, 0.999))), o.get("epsilon", 1e-8))


def rate(step, steps, o):
    """The learning rate of a step, counted from 0."""
    warmup, least = o.get("warmup", 0), o.get("min_lr_ratio", 0.1)
    if step < warmup:
        return o["lr"] * (step + 1) / warmup
    done = (step - warmup) / (steps - warmup)
    left = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[o.get("schedule", "constant")]
    return o["lr"] * (least + (1 - least) * left) if o.get("schedule", "constant") != "constant" else o["lr"]


def loss_of(model, logits, targets, training):
    smoothing = getattr(model, "smoothing", 0.0) if training else 0.0
    logits = logits.float().flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=data.IGNORED, label_smoothing=smoothing)


def averaged(model, optimizer):
    """Leaves in the model what is evaluated: of averaged SGD the averages."""
    if isinstance(optimizer, torch.optim.ASGD):
        for p in model.parameters():
            p.data.copy_(optimizer.state[p]["ax"])


def evaluate(model, samples, classes):
    """Mean loss over targets; accuracy; of two classes, F1 of the second."""
    model.eval()
    total, count, right, table = 0.0, 0, 0, torch.zeros(2, 2)
    with torch.no_grad():
        for batch in samples:
            logits, targets = model(batch), batch["targets"]
            asked = targets != data.IGNORED
            n = int(asked.sum())
            total, count = total + n * float(loss_of(model, logits, targets, False)), count + n
            guess = logits.argmax(-1)
            right += int((guess == targets)[asked].sum())
            if classes == 2:
                for t, g in zip(targets.tolist(), guess.tolist()):
                    table[t, g] += 1
    result = {"loss": round(total / count, 4), "perplexity": round(math.exp(total / count), 2), "accuracy": round(right / count, 4)}
    if classes == 2:
        result["f1"] = round(float(2 * table[1, 1] / (2 * table[1, 1] + table[0, 1] + table[1, 0])), 4)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, help="fewer steps, for a trial")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    with open(a.job, encoding="utf-8") as file:
        job = yaml.safe_load(file)
    model, task, length = build(job)
    samples = data.Data(job, os.path.dirname(a.job) or ".", task, length)
    o, n = {k: number(v) for k, v in job["optimizer"].items()}, job["pipelines"]
    steps, size = a.steps or -(-job["train"]["steps"] // n), job["train"]["batch"] * n  # the job counts the batches of all pipelines
    o["warmup"], o["t0"] = -(-o.get("warmup", 0) // n), -(-o.get("t0", 0) // n)
    optimizer, batches, started = optimizer_of(model, o), samples.batches(size), time.perf_counter()
    cast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=job.get("precision") == "bf16")
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, o)
        batch = next(batches)
        with cast:
            logits = model(batch)
        loss = loss_of(model, logits, batch["targets"], True)
        optimizer.zero_grad()
        (loss + getattr(model, "penalty", 0.0)).backward()
        if o.get("clip_norm"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), o["clip_norm"])
        optimizer.step()
    seconds = time.perf_counter() - started
    averaged(model, optimizer)
    classes = job["model"]["config"].get("num_labels", 0) if task == "classification" else 0
    print(json.dumps({
        "job": os.path.basename(a.job).removesuffix(".yaml"), "peer": "torch " + torch.__version__, "threads": a.threads,
        "precision": job.get("precision", "f32"), "parameters": sum(p.numel() for p in model.parameters()),
        "steps": steps, "samples": steps * size, "seconds": round(seconds, 1), **evaluate(model, samples.evaluation(), classes)}))


if __name__ == "__main__":
    main()
