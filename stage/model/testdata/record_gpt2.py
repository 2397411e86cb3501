#!/usr/bin/python3
"""Records gpt2.safetensors: a tiny GPT-2 in plain PyTorch, float64, with Hugging Face's tensor names.

    /usr/bin/python3 record_gpt2.py [gpt2.safetensors]      (Debian: apt-get install python3-torch)

Tensors in the file (float32 unless said):
  weights/NAME            before training, tied embeddings stored once
  ids, labels             (B,T) int32; two labels are -1, ignored
  logits                  (B,T,V)
  loss, norm              float64: mean loss in nats; global norm of its gradient, the tied tensor counted once
  gradients/NAME          of the mean loss; of the tied tensor, the sum over its two uses
  OPTIMIZER/NAME          the weights after STEPS steps on the same batch, gradients clipped to norm CLIP
The file's metadata holds the config and the hyperparameters as JSON.
"""
import json
import math
import struct
import sys

import torch
import torch.nn.functional as F

CONFIG = dict(n_layer=2, n_head=2, n_embd=16, n_positions=20, vocab_size=48, n_inner=40, layer_norm_epsilon=1e-5)
B, T, STEPS, CLIP = 4, 16, 3, 0.5
# Adam's epsilon is large on purpose: the true gradient of a key's bias is 0 (softmax does not see it), and with 1e-8 Adam
# would turn its rounding noise into steps of full size.
OPTIMIZERS = {
    "adamw": dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1),
    "adam": dict(lr=1e-2, betas=(0.8, 0.99), eps=1e-4, weight_decay=0.1),
    "sgd": dict(lr=1e-1, momentum=0.9, nesterov=True, weight_decay=0.1),
}


def fresh_weights():
    """Large random values everywhere, so that no term of any gradient is small by construction."""
    d, v, t, f = CONFIG["n_embd"], CONFIG["vocab_size"], CONFIG["n_positions"], CONFIG["n_inner"]
    shapes = {"transformer.wte.weight": (v, d), "transformer.wpe.weight": (t, d)}
    for i in range(CONFIG["n_layer"]):
        h = f"transformer.h.{i}."
        for name, (rows, columns) in {
            "attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "mlp.c_fc": (d, f), "mlp.c_proj": (f, d),
        }.items():
            shapes[h + name + ".weight"], shapes[h + name + ".bias"] = (rows, columns), (columns,)
        for name in ("ln_1", "ln_2"):
            shapes[h + name + ".weight"], shapes[h + name + ".bias"] = (d,), (d,)
    shapes["transformer.ln_f.weight"], shapes["transformer.ln_f.bias"] = (d,), (d,)
    weights = {}
    for name, shape in shapes.items():
        w = torch.randn(shape) * 0.2
        if "ln_" in name and name.endswith("weight"):
            w = w + 1
        weights[name] = w.float().double().requires_grad_()  # exactly what the file holds
    return weights


def forward(w, ids):
    d, heads = CONFIG["n_embd"], CONFIG["n_head"]

    def norm(x, name):
        return F.layer_norm(x, (d,), w[name + ".weight"], w[name + ".bias"], CONFIG["layer_norm_epsilon"])

    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    b, t = ids.shape
    future = torch.ones(t, t, dtype=torch.bool).triu(1)
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:t]
    for i in range(CONFIG["n_layer"]):
        h = f"transformer.h.{i}."
        q, k, v = conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split(d, 2)
        q, k, v = [z.view(b, t, heads, d // heads).transpose(1, 2) for z in (q, k, v)]
        scores = (q @ k.transpose(-2, -1) / math.sqrt(d // heads)).masked_fill(future, -math.inf)
        a = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)
        x = x + conv1d(a, h + "attn.c_proj")
        u = conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")
        u = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        x = x + conv1d(u, h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def loss_of(w, ids, labels):
    return F.cross_entropy(forward(w, ids).reshape(-1, CONFIG["vocab_size"]), labels.reshape(-1), ignore_index=-1)


def train(weights, ids, labels, name, hyper):
    w = {n: p.detach().clone().requires_grad_() for n, p in weights.items()}
    decayed = [p for p in w.values() if p.dim() >= 2]
    plain = [p for p in w.values() if p.dim() < 2]
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    optimizer = kind([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], **hyper)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(w, ids, labels).backward()
        torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)
        optimizer.step()
    return w


def save(path, tensors, metadata):
    header, blob = {"__metadata__": metadata}, b""
    for name, x in tensors.items():
        kind, code = {torch.float32: ("F32", "f"), torch.float64: ("F64", "d"), torch.int32: ("I32", "i")}[x.dtype]
        values = x.detach().reshape(-1).tolist()
        raw = struct.pack(f"<{len(values)}{code}", *values)
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def main():
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    weights = fresh_weights()
    ids = torch.randint(0, CONFIG["vocab_size"], (B, T))
    labels = torch.randint(0, CONFIG["vocab_size"], (B, T))
    labels[1, 3] = labels[2, 15] = -1
    loss = loss_of(weights, ids, labels)
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in weights.values()))
    assert norm > 2 * CLIP, "clipping must bite"
    tensors = {"ids": ids.int(), "labels": labels.int(), "loss": loss, "norm": norm}
    tensors["logits"] = forward(weights, ids).float()
    for n, p in weights.items():
        tensors["weights/" + n], tensors["gradients/" + n] = p.float(), p.grad.float()
    for name, hyper in OPTIMIZERS.items():
        for n, p in train(weights, ids, labels, name, hyper).items():
            tensors[f"{name}/{n}"] = p.float()
    metadata = {"config": json.dumps(CONFIG), "optimizers": json.dumps(OPTIMIZERS),
                "clip": str(CLIP), "steps": str(STEPS), "torch": torch.__version__}
    save(sys.argv[1] if len(sys.argv) > 1 else "gpt2.safetensors", tensors, metadata)


if __name__ == "__main__":
    main()
