"""GPT-2 (Radford et al. 2019), Llama (Touvron et al. 2023) and BERT (Devlin et al. 2019) in plain PyTorch, from the fields of
their config.json. Shapes: B samples, T positions, D width, H heads.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F


def attention(q, k, v, hidden=None, dropout=0.0):
    """q, k, v: (B,H,T,D/H); hidden: True where a key must not be seen."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return (F.dropout(scores.softmax(-1), dropout) @ v).transpose(1, 2).flatten(2)


def heads(x, count):
    b, t, d = x.shape
    return x.view(b, t, count, d // count).transpose(1, 2)


def future(t):
    return torch.ones(t, t, dtype=torch.bool).triu(1)


def normal(module, deviation, residual=(), layers=0):
    """Fresh weights as avgpiped starts: normal matrices, the residual ones smaller by sqrt(2 layers); biases 0, norms 1."""
    for name, p in module.named_parameters():
        if p.dim() > 1:
            into = name.split(".")[-2] in residual
            nn.init.normal_(p, 0.0, deviation / math.sqrt(2 * layers) if into else deviation)
    for m in module.modules():
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)


class GPT2(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["n_embd"]
        self.heads = c["n_head"]
        self.wte, self.wpe = nn.Embedding(c["vocab_size"], d), nn.Embedding(c["n_positions"], d)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "ln_1": nn.LayerNorm(d), "c_attn": nn.Linear(d, 3 * d), "c_proj": nn.Linear(d, d),
                "ln_2": nn.LayerNorm(d), "c_fc": nn.Linear(d, 4 * d), "mlp_proj": nn.Linear(4 * d, d),
            }) for _ in range(c["n_layer"]))
        self.ln_f = nn.LayerNorm(d)
        normal(self, c.get("initializer_range", 0.02), ("c_proj", "mlp_proj"), c["n_layer"])

    def forward(self, batch):
        ids = batch["ids"]
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        hidden = future(ids.shape[1])
        for b in self.blocks:
            q, k, v = (heads(z, self.heads) for z in b["c_attn"](b["ln_1"](x)).chunk(3, -1))
            x = x + b["c_proj"](attention(q, k, v, hidden))
            x = x + b["mlp_proj"](F.gelu(b["c_fc"](b["ln_2"](x)), approximate="tanh"))
        return F.linear(self.ln_f(x), self.wte.weight)


class RMSNorm(nn.Module):
    def __init__(self, d, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(d)), epsilon

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.epsilon))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, inner, epsilon = c["hidden_size"], c["intermediate_size"], c.get("rms_norm_eps", 1e-6)
        self.heads, self.kv = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
        head = d // self.heads
        self.embed = nn.Embedding(c["vocab_size"], d)
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "norm_1": RMSNorm(d, epsilon), "q": linear(d, d), "k": linear(d, self.kv * head), "v": linear(d, self.kv * head),
                "o": linear(d, d), "norm_2": RMSNorm(d, epsilon), "gate": linear(d, inner), "up": linear(d, inner),
                "down": linear(inner, d),
            }) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(d, epsilon)
        self.head = self.embed if c.get("tie_word_embeddings", False) else linear(d, c["vocab_size"])
        normal(self, c.get("initializer_range", 0.02), ("o", "down"), c["num_hidden_layers"])
        angle = torch.arange(c["max_position_embeddings"])[:, None] / c.get("rope_theta", 10000.0) ** (torch.arange(0, head, 2) / head)
        self.cos, self.sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)  # (T,D/H)

    def rotate(self, x):
        """Su et al. 2021, the two halves of a head as the real and imaginary parts."""
        a, b = x.chunk(2, -1)
        t = x.shape[2]
        return x * self.cos[:t] + torch.cat([-b, a], -1) * self.sin[:t]

    def forward(self, batch):
        ids = batch["ids"]
        x, hidden, shared = self.embed(ids), future(ids.shape[1]), self.heads // self.kv
        for b in self.blocks:
            y = b["norm_1"](x)
            q, k, v = self.rotate(heads(b["q"](y), self.heads)), self.rotate(heads(b["k"](y), self.kv)), heads(b["v"](y), self.kv)
            x = x + b["o"](attention(q, k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1), hidden))
            y = b["norm_2"](x)
            x = x + b["down"](F.silu(b["gate"](y)) * b["up"](y))
        return F.linear(self.norm(x), self.head.weight)


class BERT(nn.Module):
    """With the head of masked language modelling or of classification."""

    def __init__(self, c, classes):
        super().__init__()
        d, inner, epsilon = c["hidden_size"], c["intermediate_size"], c.get("layer_norm_eps", 1e-12)
        self.heads, self.p = c["num_attention_heads"], c.get("hidden_dropout_prob", 0.1)
        self.attention_p = c.get("attention_probs_dropout_prob", 0.1)
        self.words, self.positions = nn.Embedding(c["vocab_size"], d), nn.Embedding(c["max_position_embeddings"], d)
        self.types, self.norm = nn.Embedding(c.get("type_vocab_size", 2), d), nn.LayerNorm(d, epsilon)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "qkv": nn.Linear(d, 3 * d), "o": nn.Linear(d, d), "norm_1": nn.LayerNorm(d, epsilon),
                "up": nn.Linear(d, inner), "down": nn.Linear(inner, d), "norm_2": nn.LayerNorm(d, epsilon),
            }) for _ in range(c["num_hidden_layers"]))
        self.dense = nn.Linear(d, d)
        self.classes = classes
        if classes:
            self.classifier = nn.Linear(d, classes)
        else:
            self.head_norm, self.bias = nn.LayerNorm(d, epsilon), nn.Parameter(torch.zeros(c["vocab_size"]))
        normal(self, c.get("initializer_range", 0.02))

    def forward(self, batch):
        ids, drop = batch["ids"], lambda x: F.dropout(x, self.p, self.training)
        x = self.words(ids) + self.positions.weight[:ids.shape[1]] + self.types(batch["types"])
        x, hidden = drop(self.norm(x)), (batch["mask"] == 0)[:, None, None, :]
        for b in self.blocks:
            q, k, v = (heads(z, self.heads) for z in b["qkv"](x).chunk(3, -1))
            x = b["norm_1"](x + drop(b["o"](attention(q, k, v, hidden, self.attention_p if self.training else 0.0))))
            x = b["norm_2"](x + drop(b["down"](F.gelu(b["up"](x)))))
        if self.classes:
            return self.classifier(drop(self.dense(x[:, 0]).tanh()))
        return F.linear(self.head_norm(F.gelu(self.dense(x))), self.words.weight, self.bias)
