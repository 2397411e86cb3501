#!/usr/bin/python3
"""Records llama.safetensors (tied embeddings), llama-untied.safetensors, mistral.safetensors (a window) and qwen2.safetensors (biases,
and a window in its second layer): tiny models in plain PyTorch, float64, with Hugging Face's tensor names.

    /usr/bin/python3 record_llama.py      (Debian: apt-get install python3-torch)

Tensors in a file (float32 unless said):
  weights/NAME            before training, tied embeddings stored once
  ids, labels             (B,T) int32; two labels are -1, ignored
  logits                  (B,T,V)
  loss, norm              float64: mean loss in nats; global norm of its gradient, the tied tensor counted once
  gradients/NAME          of the mean loss; of the tied tensor, the sum over its two uses
The file's metadata holds the config as JSON.
"""
import torch
import torch.nn.functional as F

from plain import centre_norms, llama
from recording import fresh, save

CONFIG = dict(vocab_size=44, max_position_embeddings=20, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=100.0, tie_word_embeddings=True)
UNTIED = dict(CONFIG, num_key_value_heads=1, head_dim=6, rope_theta=100.0, tie_word_embeddings=False, attention_bias=True,
              mlp_bias=True, rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=0.5, high_freq_factor=1.5,
                                               original_max_position_embeddings=8))
MISTRAL = dict(CONFIG, sliding_window=5, tie_word_embeddings=False)
QWEN2 = dict(CONFIG, use_sliding_window=True, sliding_window=4, max_window_layers=1)
B, T = 4, 12


def biased(c, name):
    """Whether the projection of this name has a bias."""
    if "attn" not in name:
        return c.get("mlp_bias")
    return c.get("attention_bias") or "max_window_layers" in c and "o_proj" not in name  # Qwen2's queries, keys and values


def shapes(c):
    d, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    s = c.get("head_dim") or d // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * s, c["num_key_value_heads"] * s
    out = {"model.embed_tokens.weight": (v, d)}
    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}."
        for name, (rows, columns) in {
            "self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q),
            "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f),
        }.items():
            out[h + name + ".weight"] = (rows, columns)
            if biased(c, name):
                out[h + name + ".bias"] = (rows,)
        out[h + "input_layernorm.weight"] = out[h + "post_attention_layernorm.weight"] = (d,)
    out["model.norm.weight"] = (d,)
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (v, d)
    return out


def record(path, config):
    w = fresh(shapes(config), 0.4)
    centre_norms(w)
    ids, labels = torch.randint(0, config["vocab_size"], (B, T)), torch.randint(0, config["vocab_size"], (B, T))
    labels[1, 3] = labels[2, 11] = -1
    logits = llama(dict(config, model_type=path.split(".")[0]), w, ids)
    loss = F.cross_entropy(logits.reshape(-1, config["vocab_size"]), labels.reshape(-1), ignore_index=-1)
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in w.values()))
    tensors = {"ids": ids.int(), "labels": labels.int(), "logits": logits.float(), "loss": loss, "norm": norm}
    for name, p in w.items():
        tensors["weights/" + name], tensors["gradients/" + name] = p.float(), p.grad.float()
    save(path, tensors, {"config": config, "optimizers": {}, "torch": torch.__version__})


def main():
    torch.manual_seed(17)
    torch.set_default_dtype(torch.float64)
    record("llama.safetensors", CONFIG)
    record("llama-untied.safetensors", UNTIED)
    record("mistral.safetensors", MISTRAL)
    record("qwen2.safetensors", QWEN2)


if __name__ == "__main__":
    main()
