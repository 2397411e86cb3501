#!/usr/bin/python3
"""Records awd-lstm.safetensors: a tiny AWD-LSTM in plain PyTorch, float64, with the tensor names of awd-lstm-lm.

    /usr/bin/python3 record_awdlstm.py [awd-lstm.safetensors]      (Debian: apt-get install python3-torch)

Tensors in the file (float32 unless said):
  weights/NAME            before training, tied embeddings stored once
  ids, labels             (B,T) int32
  logits                  (B,T,V)
  loss, norm              float64: mean loss in nats, without regularisation; global norm of the gradient of the mean loss
                          with activation and temporal activation regularisation, the tied tensor counted once
  gradients/NAME          of that; of the tied tensor, the sum over its two uses
  asgd/NAME               the averages after STEPS steps on the same batch, gradients clipped to norm CLIP
The file's metadata holds the config and the hyperparameters as JSON. Nothing is dropped out.
"""
import sys

import torch
import torch.nn.functional as F

from recording import fresh, lstm, lstm_shapes, save

CONFIG = dict(ntoken=29, ninp=6, nhid=9, nlayers=3, bptt=12, dropout=0.0, dropouth=0.0, dropouti=0.0, dropoute=0.0, wdrop=0.0,
              alpha=2.0, beta=1.0, tie_weights=True)
B, T, STEPS, CLIP = 4, 8, 6, 0.1
OPTIMIZERS = {"asgd": dict(lr=0.5, t0=1, weight_decay=0.1)}


def shapes():
    v, d, n = CONFIG["ntoken"], CONFIG["ninp"], CONFIG["nlayers"]
    out = {"encoder.weight": (v, d)}
    for i in range(n):
        out.update(lstm_shapes(f"rnns.{i}", d if i == 0 else CONFIG["nhid"], d if i == n - 1 else CONFIG["nhid"]))
    out["decoder.bias"] = (v,)
    return out


def forward(w, ids):
    x = w["encoder.weight"][ids]
    for i in range(CONFIG["nlayers"]):
        x = lstm(w, f"rnns.{i}", x)
    return x @ w["encoder.weight"].T + w["decoder.bias"], x


def losses(w, ids, labels):
    logits, last = forward(w, ids)
    raw = F.cross_entropy(logits.reshape(-1, CONFIG["ntoken"]), labels.reshape(-1))
    whole = raw + CONFIG["alpha"] * last.pow(2).mean() + CONFIG["beta"] * (last[:, 1:] - last[:, :-1]).pow(2).mean()
    return logits, raw, whole


def train(weights, ids, labels, hyper):
    w = {n: p.detach().clone().requires_grad_() for n, p in weights.items()}
    matrices, vectors = [p for p in w.values() if p.dim() >= 2], [p for p in w.values() if p.dim() < 2]
    optimizer = torch.optim.ASGD([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lambd=0.0, **hyper)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses(w, ids, labels)[2].backward()
        torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)
        optimizer.step()
    return {n: optimizer.state[p]["ax"] for n, p in w.items()}


def main():
    torch.manual_seed(13)
    torch.set_default_dtype(torch.float64)
    w, v = fresh(shapes(), 0.5), CONFIG["ntoken"]
    ids, labels = torch.randint(0, v, (B, T)), torch.randint(0, v, (B, T))
    logits, raw, whole = losses(w, ids, labels)
    whole.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in w.values()))
    assert norm > 2 * CLIP, "clipping must bite"
    tensors = {"ids": ids.int(), "labels": labels.int(), "logits": logits.float(), "loss": raw, "norm": norm}
    for name, p in w.items():
        tensors["weights/" + name], tensors["gradients/" + name] = p.float(), p.grad.float()
    for name, hyper in OPTIMIZERS.items():
        for n, p in train(w, ids, labels, hyper).items():
            tensors[f"{name}/{n}"] = p.float()
    save(sys.argv[1] if len(sys.argv) > 1 else "awd-lstm.safetensors", tensors,
         {"config": CONFIG, "optimizers": OPTIMIZERS, "clip": CLIP, "steps": STEPS, "torch": torch.__version__})


if __name__ == "__main__":
    main()
