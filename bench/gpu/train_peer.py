"""Trains a transformer on a GPU with PyTorch, eagerly, in bf16, and prints a JSON line: the peer of bench/gpu.

It is GPT-2 with a tied head, or BERT for masked words, from the fields of their configurations. Attention is PyTorch's
scaled_dot_product_attention, the optimizer its fused AdamW, the norm of the gradients is clipped. Weights are float32; autocast
has products in bf16. Two steps warm up, and the median of the others counts.
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Self-attention and two dense layers, with the norms before each (GPT-2) or after the sum (BERT)."""

    def __init__(self, width, inner, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attended, self.computed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.gelu = "tanh" if causal else "none"

    def attention(self, x):
        samples, positions, width = x.shape
        parts = self.inputs(x).view(samples, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(samples, positions, width))

    def dense(self, x):
        return self.down(functional.gelu(self.up(x), approximate=self.gelu))

    def forward(self, x):
        if self.causal:
            x = x + self.attention(self.attended(x))
            return x + self.dense(self.computed(x))
        x = self.attended(x + self.attention(x))
        return self.computed(x + self.dense(x))


class GPT2(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["n_embd"]
        self.vocabulary = c["vocab_size"]
        self.words, self.places = nn.Embedding(self.vocabulary, width), nn.Embedding(c["n_positions"], width)
        self.blocks = nn.Sequential(*[Block(width, 4 * width, c["n_head"], True) for _ in range(c["n_layer"])])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.words.weight)


class BERT(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["hidden_size"]
        self.vocabulary = c["vocab_size"]
        self.words, self.places = nn.Embedding(self.vocabulary, width), nn.Embedding(c["max_position_embeddings"], width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        blocks = [Block(width, c["intermediate_size"], c["num_attention_heads"], False) for _ in range(c["num_hidden_layers"])]
        self.blocks = nn.Sequential(*blocks)
        self.last, self.last_norm, self.bias = nn.Linear(width, width), nn.LayerNorm(width), nn.Parameter(torch.zeros(self.vocabulary))

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]] + self.types.weight[0]
        x = self.blocks(self.norm(x))
        return functional.linear(self.last_norm(functional.gelu(self.last(x))), self.words.weight, self.bias)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=["gpt2", "bert"], required=True)
    parser.add_argument("--config", type=json.loads, required=True)
    for name in ("sequence", "batch", "micro", "steps", "gpu"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--device", default="cuda", help="cpu, to try the script")
    a = parser.parse_args()
    device = torch.device(a.device, a.gpu) if a.device == "cuda" else torch.device(a.device)
    torch.manual_seed(0)
    model = {"gpt2": GPT2, "bert": BERT}[a.family](a.config).to(device)
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if on_gpu else {}))
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    seconds = []
    for _ in range(2 + a.steps):
        wait()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for _ in range(a.batch // a.micro):
            ids, targets = (torch.randint(0, model.vocabulary, (a.micro, a.sequence)).to(device, non_blocking=True) for _ in range(2))
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(ids)
                loss = functional.cross_entropy(logits.view(-1, model.vocabulary), targets.view(-1))
            (loss * a.micro / a.batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait()
        seconds.append(time.perf_counter() - began)
    print(json.dumps({
        "peer": "torch " + torch.__version__, "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "params": sum(p.numel() for p in model.parameters()), "tokens_per_s": a.batch * a.sequence / statistics.median(seconds[2:]),
    }))


if __name__ == "__main__":
    main()
