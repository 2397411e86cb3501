#!/usr/bin/python3
"""Records gnmt.safetensors: a tiny GNMT in plain PyTorch, float64, with the tensor names of the MLPerf reference.

    /usr/bin/python3 record_gnmt.py [gnmt.safetensors]      (Debian: apt-get install python3-torch)

Tensors in the file (float32 unless said):
  weights/NAME             before training
  ids, mask, decoder_ids, labels   (B,T) int32; sources and targets of different lengths, -1 beyond the targets' ends
  logits                   (B,T,V)
  loss, norm               float64: mean loss in nats, smoothed; global norm of its gradient
  evaluation_loss          float64: mean loss without smoothing
  gradients/NAME           of the mean loss
The file's metadata holds the config as JSON. Nothing is dropped out.
"""
import sys

import torch
import torch.nn.functional as F

from recording import fresh, lstm, lstm_shapes, save

CONFIG = dict(vocab_size=23, hidden_size=6, num_layers=4, dropout=0.0, share_embedding=True, smoothing=0.1, max_length=9)
B, T = 4, 7
SOURCE, TARGET = [7, 4, 6, 1], [6, 7, 3, 5]


def shapes():
    v, h, n = CONFIG["vocab_size"], CONFIG["hidden_size"], CONFIG["num_layers"]
    out = {"encoder.embedder.weight": (v, h)}
    for i in range(n):
        out.update(lstm_shapes(f"encoder.rnn_layers.{i}", 2 * h if i == 1 else h, h, both=i == 0))
    out.update(lstm_shapes("decoder.att_rnn.rnn", h, h))
    a = "decoder.att_rnn.attn."
    out.update({a + "linear_query.weight": (h, h), a + "linear_key.weight": (h, h), a + "linear_att": (h,),
                a + "normalize_scalar": (1,), a + "normalize_bias": (h,)})
    for i in range(n - 1):
        out.update(lstm_shapes(f"decoder.rnn_layers.{i}", 2 * h, h))
    out.update({"decoder.classifier.classifier.weight": (v, h), "decoder.classifier.classifier.bias": (v,)})
    return out


def attention(w, query, keys, mask):
    a = "decoder.att_rnn.attn."
    q, k = query @ w[a + "linear_query.weight"].T, keys @ w[a + "linear_key.weight"].T
    v = w[a + "linear_att"] / w[a + "linear_att"].norm() * w[a + "normalize_scalar"]
    scores = torch.tanh(q[:, :, None] + k[:, None] + w[a + "normalize_bias"]) @ v
    return scores.masked_fill(mask[:, None] == 0, -float("inf")).softmax(-1) @ keys


def forward(w, ids, mask, decoder_ids):
    table, n = w["encoder.embedder.weight"], CONFIG["num_layers"]
    x = lstm(w, "encoder.rnn_layers.0", table[ids], lengths=SOURCE, both=True)
    x = lstm(w, "encoder.rnn_layers.1", x)
    for i in range(2, n):
        x = x + lstm(w, f"encoder.rnn_layers.{i}", x)
    y = lstm(w, "decoder.att_rnn.rnn", table[decoder_ids])
    context = attention(w, y, x, mask)
    for i in range(n - 1):
        above = lstm(w, f"decoder.rnn_layers.{i}", torch.cat((y, context), 2))
        y = above + y if i >= 1 else above
    return y @ w["decoder.classifier.classifier.weight"].T + w["decoder.classifier.classifier.bias"]


def ragged(lengths, fill, values):
    return torch.stack([torch.cat((v[:n], torch.full((T - n,), fill))) for n, v in zip(lengths, values)])


def main():
    torch.manual_seed(11)
    torch.set_default_dtype(torch.float64)
    w, v = fresh(shapes(), 0.5), CONFIG["vocab_size"]
    ids, decoder_ids = torch.randint(0, v, (B, T)), torch.randint(0, v, (B, T))
    mask = ragged(SOURCE, 0, torch.ones(B, T, dtype=torch.long))
    labels = ragged(TARGET, -1, torch.randint(0, v, (B, T)))
    logits = forward(w, ids, mask, decoder_ids)

    def loss_of(smoothing):
        return F.cross_entropy(logits.reshape(-1, v), labels.reshape(-1), ignore_index=-1, label_smoothing=smoothing)

    loss = loss_of(CONFIG["smoothing"])
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in w.values()))
    tensors = {"ids": ids.int(), "mask": mask.int(), "decoder_ids": decoder_ids.int(), "labels": labels.int(),
               "logits": logits.float(), "loss": loss, "norm": norm, "evaluation_loss": loss_of(0.0)}
    for name, p in w.items():
        tensors["weights/" + name], tensors["gradients/" + name] = p.float(), p.grad.float()
    save(sys.argv[1] if len(sys.argv) > 1 else "gnmt.safetensors", tensors,
         {"config": CONFIG, "optimizers": {}, "torch": torch.__version__})


if __name__ == "__main__":
    main()
