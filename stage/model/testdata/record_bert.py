#!/usr/bin/python3
"""Records bert.safetensors, a classifier of pairs, and bert-masked.safetensors, a masked language model: tiny BERTs in plain
PyTorch, float64, with Hugging Face's tensor names.

    /usr/bin/python3 record_bert.py      (Debian: apt-get install python3-torch)

Tensors in a file (float32 unless said):
  weights/NAME            before training, tied embeddings stored once
  ids, token_types, mask  (B,T) int32; three samples end with padding
  labels                  int32: (B) classes, or (B,T) tokens, most of them -1, ignored
  logits                  (B,C) or (B,T,V)
  loss, norm              float64: mean loss in nats; global norm of its gradient, the tied tensor counted once
  gradients/NAME          of the mean loss; of the tied tensor, the sum over its two uses. That of a key's bias is 0, but for
                          rounding: the softmax does not see it
The file's metadata holds the config as JSON. Nothing is dropped out.
"""
import torch
import torch.nn.functional as F

from plain import bert, centre_norms
from recording import fresh, save

CONFIG = dict(architectures="BertForSequenceClassification", vocab_size=40, type_vocab_size=2, num_labels=3,
              max_position_embeddings=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
              hidden_act="gelu", layer_norm_eps=1e-6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
MASKED = dict(CONFIG, architectures="BertForMaskedLM", hidden_act="gelu_new", num_hidden_layers=3)
B, T = 4, 10


def shapes(c):
    d, f, v, e = c["hidden_size"], c["intermediate_size"], c["vocab_size"], "bert.embeddings."
    out = {e + "word_embeddings.weight": (v, d), e + "position_embeddings.weight": (c["max_position_embeddings"], d),
           e + "token_type_embeddings.weight": (c["type_vocab_size"], d)}

    def norm(name):
        out[name + ".LayerNorm.weight"] = out[name + ".LayerNorm.bias"] = (d,)

    def dense(name, rows, columns):
        out[name + ".weight"], out[name + ".bias"] = (rows, columns), (rows,)

    norm("bert.embeddings")
    for i in range(c["num_hidden_layers"]):
        h = f"bert.encoder.layer.{i}."
        for name in ("query", "key", "value"):
            dense(f"{h}attention.self.{name}", d, d)
        dense(h + "attention.output.dense", d, d)
        norm(h + "attention.output")
        dense(h + "intermediate.dense", f, d)
        dense(h + "output.dense", d, f)
        norm(h + "output")
    if c["architectures"] == "BertForSequenceClassification":
        dense("bert.pooler.dense", d, d)
        dense("classifier", c["num_labels"], d)
    else:
        dense("cls.predictions.transform.dense", d, d)
        norm("cls.predictions.transform")
        out["cls.predictions.bias"] = (v,)
    return out


def record(path, config):
    w = fresh(shapes(config), 0.3)
    centre_norms(w)
    classify = config["architectures"] == "BertForSequenceClassification"
    classes = config["num_labels"] if classify else config["vocab_size"]
    ids = torch.randint(0, config["vocab_size"], (B, T))
    lengths = torch.tensor([T, 7, 9, 4])
    mask = (torch.arange(T) < lengths[:, None]).long()
    types = (torch.arange(T) >= lengths[:, None] // 2).long() * mask
    labels = torch.randint(0, classes, (B,) if classify else (B, T))
    if not classify:
        labels[torch.rand(B, T) < 0.6] = -1
        labels[mask == 0] = -1
    logits = bert(config, w, ids, types, mask)
    loss = F.cross_entropy(logits.reshape(-1, classes), labels.reshape(-1), ignore_index=-1)
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in w.values()))
    tensors = {"ids": ids.int(), "token_types": types.int(), "mask": mask.int(), "labels": labels.int(), "logits": logits.float(),
               "loss": loss, "norm": norm}
    for name, p in w.items():
        tensors["weights/" + name], tensors["gradients/" + name] = p.float(), p.grad.float()
    save(path, tensors, {"config": config, "optimizers": {}, "torch": torch.__version__})


def main():
    torch.manual_seed(23)
    torch.set_default_dtype(torch.float64)
    record("bert.safetensors", CONFIG)
    record("bert-masked.safetensors", MASKED)


if __name__ == "__main__":
    main()
