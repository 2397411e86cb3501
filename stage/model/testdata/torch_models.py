#!/usr/bin/python3
"""Trains every model family put together from PyTorch's own modules (nn.LSTM, nn.TransformerEncoderLayer, nn.Conv2d,
nn.BatchNorm2d and so on) with PyTorch's own optimizers: the second source of package model.

Standard input is a JSON list of cases: family and config, weights by name, a batch, the masks of what is dropped out in the order
of use (step after step), optimizers with their hyperparameters, clip and steps. Standard output is a list of
{"loss", "norm", "gradients": {name: values}, "updates": {optimizer: {name: values}}} in float64 and, for cases that ask for it,
"bf16": {"loss", "gradients"} of the same model in float32 under autocast to bfloat16.

Llama, Mistral and Qwen2 have no module; their attention is F._scaled_dot_product_attention (the public one came after 1.13)
unless something is dropped out of it, and rotary positions are products of complex numbers.
"""
import json
import sys
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.nn.utils.stateless import functional_call

masks = []


def given_dropout(x, p=0.5, training=True, inplace=False):
    """Stands for F.dropout, which every module of PyTorch calls."""
    return x * masks.pop(0).reshape(x.shape).to(x.dtype) if p > 0 and training else x


F.dropout = given_dropout


def below(w, prefix):
    return {name[len(prefix):]: x for name, x in w.items() if name.startswith(prefix)}


def gelu(name):
    return (lambda x: F.gelu(x, approximate="tanh")) if name.startswith("gelu_") else F.gelu


def encoder_layer(width, heads, inner, act, epsilon, hidden_rate, attention_rate, norm_first):
    m = nn.TransformerEncoderLayer(width, heads, inner, dropout=hidden_rate, activation=gelu(act), layer_norm_eps=epsilon,
                                   batch_first=True, norm_first=norm_first)
    m.dropout.p, m.self_attn.dropout = 0.0, attention_rate  # nothing is dropped behind the activation
    return m


def gpt2(c, w, b):
    ids, t = b["ids"], b["ids"].shape[1]
    w = below(w, "transformer.") | {"head": w.get("lm_head.weight", w["transformer.wte.weight"])}
    x = F.dropout(F.embedding(ids, w["wte.weight"]) + w["wpe.weight"][:t], c["embd_pdrop"])
    future = torch.ones(t, t, dtype=torch.bool).triu(1)
    for i in range(c["n_layer"]):
        h = below(w, f"h.{i}.")
        m = encoder_layer(c["n_embd"], c["n_head"], c["n_inner"], "gelu_new", c["layer_norm_epsilon"], c["resid_pdrop"], c["attn_pdrop"], True)
        names = {"self_attn.in_proj_weight": h["attn.c_attn.weight"].T, "self_attn.in_proj_bias": h["attn.c_attn.bias"],
                 "self_attn.out_proj.weight": h["attn.c_proj.weight"].T, "self_attn.out_proj.bias": h["attn.c_proj.bias"],
                 "linear1.weight": h["mlp.c_fc.weight"].T, "linear1.bias": h["mlp.c_fc.bias"],
                 "linear2.weight": h["mlp.c_proj.weight"].T, "linear2.bias": h["mlp.c_proj.bias"]}
        for n in ("weight", "bias"):
            names["norm1." + n], names["norm2." + n] = h["ln_1." + n], h["ln_2." + n]
        x = functional_call(m, names, (x, future))
    x = F.layer_norm(x, x.shape[-1:], w["ln_f.weight"], w["ln_f.bias"], c["layer_norm_epsilon"])
    return F.linear(x, w["head"]), 0


def bert(c, w, b):
    ids, t, epsilon = b["ids"], b["ids"].shape[1], c["layer_norm_eps"]
    e = below(w, "bert.embeddings.")
    x = F.embedding(ids, e["word_embeddings.weight"]) + e["position_embeddings.weight"][:t] + F.embedding(b["token_types"], e["token_type_embeddings.weight"])
    x = F.dropout(F.layer_norm(x, x.shape[-1:], e["LayerNorm.weight"], e["LayerNorm.bias"], epsilon), c["hidden_dropout_prob"])
    for i in range(c["num_hidden_layers"]):
        h = below(w, f"bert.encoder.layer.{i}.")
        m = encoder_layer(c["hidden_size"], c["num_attention_heads"], c["intermediate_size"], c["hidden_act"], epsilon,
                          c["hidden_dropout_prob"], c["attention_probs_dropout_prob"], False)
        names = {}
        for n in ("weight", "bias"):
            names["self_attn.in_proj_" + n] = torch.cat([h[f"attention.self.{p}.{n}"] for p in ("query", "key", "value")])
            names["self_attn.out_proj." + n] = h["attention.output.dense." + n]
            names["norm1." + n], names["norm2." + n] = h["attention.output.LayerNorm." + n], h["output.LayerNorm." + n]
            names["linear1." + n], names["linear2." + n] = h["intermediate.dense." + n], h["output.dense." + n]
        x = functional_call(m, names, (x, None, b["mask"] == 0))
    if c["architectures"] == "BertForSequenceClassification":
        x = F.dropout(torch.tanh(F.linear(x[:, 0], w["bert.pooler.dense.weight"], w["bert.pooler.dense.bias"])), c["classifier_dropout"])
        return F.linear(x, w["classifier.weight"], w["classifier.bias"]), 0
    p = below(w, "cls.predictions.")
    x = gelu(c["hidden_act"])(F.linear(x, p["transform.dense.weight"], p["transform.dense.bias"]))
    x = x.to(torch.get_default_dtype())  # layer_norm takes no bfloat16 with weights in float32
    x = F.layer_norm(x, x.shape[-1:], p["transform.LayerNorm.weight"], p["transform.LayerNorm.bias"], epsilon)
    return F.linear(x, e["word_embeddings.weight"], p["bias"]), 0


def rotated(x, theta):
    """x (B,H,T,S): the complex numbers of which the first half of a head is the real part turn with the position."""
    t, s = x.shape[2], x.shape[3]
    angles = torch.outer(torch.arange(t).double(), theta ** (-torch.arange(0, s, 2).double() / s))
    z = torch.complex(x[..., :s // 2], x[..., s // 2:]) * torch.polar(torch.ones_like(angles), angles).to(torch.complex64 if x.dtype == torch.float32 else torch.complex128)
    return torch.cat([z.real, z.imag], -1)


def llama(c, w, b):
    heads, kv = c["num_attention_heads"], c.get("num_key_value_heads") or c["num_attention_heads"]
    ids = b["ids"]
    n, t = ids.shape
    distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
    rate, epsilon = c.get("attention_dropout", 0.0), c["rms_norm_eps"]

    def norm(name, x):
        return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * w[name + ".weight"]

    def linear(name, x):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    x = F.embedding(ids, w["model.embed_tokens.weight"])
    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}."
        a = norm(h + "input_layernorm", x)
        q, k, v = [linear(h + f"self_attn.{p}_proj", a).view(n, t, m, -1).transpose(1, 2) for p, m in (("q", heads), ("k", kv), ("v", kv))]
        q, k = [rotated(y.float() if y.dtype == torch.bfloat16 else y, c["rope_theta"]) for y in (q, k)]
        k, v = [y.repeat_interleave(heads // kv, 1) for y in (k, v)]
        seen = (distance >= 0) & (distance < (c.get("sliding_window") or t))
        if rate == 0 and q.dtype == v.dtype:
            a = F._scaled_dot_product_attention(q, k, v, seen.expand(n, heads, t, t))[0]
        else:
            scores = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(~seen, -float("inf"))
            a = F.dropout(scores.softmax(-1), rate) @ v
        x = x + linear(h + "self_attn.o_proj", a.transpose(1, 2).reshape(n, t, -1))
        a = norm(h + "post_attention_layernorm", x)
        x = x + linear(h + "mlp.down_proj", F.silu(linear(h + "mlp.gate_proj", a)) * linear(h + "mlp.up_proj", a))
    return F.linear(norm("model.norm", x), w.get("lm_head.weight", w["model.embed_tokens.weight"])), 0


def lstm(w, both=False, weight=lambda x: x):
    """nn.LSTM of one layer. functional_call does not replace its flat weights."""
    m = nn.LSTM(w["weight_ih_l0"].shape[1], w["weight_hh_l0"].shape[1], batch_first=True, bidirectional=both)
    m._flat_weights = [weight(w[n]) if n.startswith("weight_hh") else w[n] for n in m._flat_weights_names]
    return m


def awd_lstm(c, w, b):
    x = F.embedding(b["ids"], w["encoder.weight"])
    if c["dropoute"] > 0:
        x = x * masks.pop(0).reshape(*b["ids"].shape, 1)
    x = F.dropout(x, c["dropouti"])
    for i in range(c["nlayers"]):
        raw = lstm(below(w, f"rnns.{i}."), weight=lambda x: F.dropout(x, c["wdrop"]))(x)[0]
        x = F.dropout(raw, c["dropouth"] if i < c["nlayers"] - 1 else c["dropout"])
    extra = c["alpha"] * x.square().mean() + c["beta"] * (raw[:, 1:] - raw[:, :-1]).square().mean()
    return F.linear(x, w["encoder.weight"], w["decoder.bias"]), extra


def gnmt(c, w, b):
    rate, table, lengths = c["dropout"], w["encoder.embedder.weight"], b["mask"].sum(1)
    x = F.dropout(F.embedding(b["ids"], table), rate)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    x = pad_packed_sequence(lstm(below(w, "encoder.rnn_layers.0."), both=True)(packed)[0], batch_first=True, total_length=x.shape[1])[0]
    x = lstm(below(w, "encoder.rnn_layers.1."))(F.dropout(x, rate))[0]
    for i in range(2, c["num_layers"]):
        x = x + lstm(below(w, f"encoder.rnn_layers.{i}."))(F.dropout(x, rate))[0]
    y = lstm(below(w, "decoder.att_rnn.rnn."))(F.dropout(F.embedding(b["decoder_ids"], table), rate))[0]
    a = below(w, "decoder.att_rnn.attn.")
    v = F.normalize(a["linear_att"], dim=0, eps=0) * a["normalize_scalar"]
    scores = torch.tanh(F.linear(y, a["linear_query.weight"], a["normalize_bias"])[:, :, None] + F.linear(x, a["linear_key.weight"])[:, None]) @ v
    context = scores.masked_fill(b["mask"][:, None] == 0, -float("inf")).softmax(-1) @ x
    for i in range(c["num_layers"] - 1):
        above = lstm(below(w, f"decoder.rnn_layers.{i}."))(F.dropout(torch.cat((y, context), 2), rate))[0]
        y = above + y if i >= 1 else above
    return F.linear(y, w["decoder.classifier.classifier.weight"], w["decoder.classifier.classifier.bias"]), 0


class GroupNorm(nn.GroupNorm):
    def forward(self, x):
        return super().forward(x.to(torch.get_default_dtype()))  # it takes no bfloat16 with weights in float32


def norm_layer(c, channels):
    if c["norm"] == "group":
        return GroupNorm(c["groups"], channels, c["norm_eps"])
    return nn.BatchNorm2d(channels, c["norm_eps"], c["norm_momentum"])


class Residual(nn.Module):
    """A block of He et al. 2016 with torchvision's names."""

    def __init__(self, c, before, width, stride):
        super().__init__()
        inner = width // 4
        of = ([(before, width, 3, stride), (width, width, 3, 1)] if c["layer_type"] == "basic"
              else [(before, inner, 1, 1), (inner, inner, 3, stride), (inner, width, 1, 1)])
        self.count = len(of)
        for i, (a, b, kernel, s) in enumerate(of, 1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, kernel, s, kernel // 2, bias=False))
            setattr(self, f"bn{i}", norm_layer(c, b))
        self.downsample = None
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), norm_layer(c, width))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = F.relu(y) if i < self.count else y
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Sequential):
    def __init__(self, c):
        big = c["stem"] == "imagenet"
        layers = {"conv1": nn.Conv2d(c["num_channels"], c["embedding_size"], 7 if big else 3, 2 if big else 1, 3 if big else 1, bias=False),
                  "bn1": norm_layer(c, c["embedding_size"]), "relu": nn.ReLU()}
        if big:
            layers["maxpool"] = nn.MaxPool2d(3, 2, 1)
        before = c["embedding_size"]
        for group, width in enumerate(c["hidden_sizes"]):
            blocks = []
            for i in range(c["depths"][group]):
                blocks.append(Residual(c, before, width, 2 if i == 0 and group > 0 else 1))
                before = width
            layers[f"layer{group + 1}"] = nn.Sequential(*blocks)
        layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(before, c["num_labels"])}
        super().__init__()
        for name, m in layers.items():
            self.add_module(name, m)


class VGG(nn.Module):
    def __init__(self, c):
        super().__init__()
        features, before, size = [], c["num_channels"], c["image_size"]
        for width, depth in zip(c["hidden_sizes"], c["depths"]):
            for _ in range(depth):
                features += [nn.Conv2d(before, width, 3, padding=1)] + ([norm_layer(c, width)] if c["norm"] != "none" else []) + [nn.ReLU()]
                before = width
            features, size = features + [nn.MaxPool2d(2, 2)], size // 2
        classifier, before = [], before * size * size
        for width in c["classifier_sizes"]:
            classifier, before = classifier + [nn.Linear(before, width), nn.ReLU(), nn.Dropout(c["dropout"])], width
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(*classifier, nn.Linear(before, c["num_labels"]))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        widths = [c["num_channels"] * c["image_size"] ** 2] + c["hidden_sizes"] + [c["num_labels"]]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.act, self.drop = F.relu if c["hidden_act"] == "relu" else gelu(c["hidden_act"]), nn.Dropout(c["dropout"])

    def forward(self, x):
        x = x.flatten(1)
        for m in self.layers[:-1]:
            x = self.drop(self.act(m(x)))
        return self.layers[-1](x)


def images(module):
    return lambda c, w, b: (functional_call(module(c), w, (b["pixels"],)), 0)


FAMILIES = {"gpt2": gpt2, "bert": bert, "llama": llama, "mistral": llama, "qwen2": llama, "awd-lstm": awd_lstm, "gnmt": gnmt,
            "resnet": images(ResNet), "vgg": images(VGG), "mlp": images(MLP)}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "asgd": torch.optim.ASGD}


def running(name):
    return ".running_" in name


def leaves(case, kind):
    return {n: torch.tensor(x["values"], dtype=kind).reshape(x["shape"]).requires_grad_(not running(n)) for n, x in case["weights"].items()}


def batch(case, kind):
    return {n: torch.tensor(x["values"], dtype=kind if n == "pixels" else torch.long).reshape(x["shape"]) for n, x in case["batch"].items()}


def losses(case, w, b):
    """The loss that is reported, and the one that is differentiated."""
    c = case["config"]
    logits, extra = FAMILIES[case["family"]](c, w, b)
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]).to(torch.get_default_dtype()), b["labels"].reshape(-1),
                           ignore_index=-1, label_smoothing=c.get("smoothing", 0.0))
    return loss, loss + extra


def begin(case, kind):
    masks[:] = [torch.tensor(m, dtype=kind) for m in case["masks"] or []]


def values(tensors):
    return {n: x.detach().reshape(-1).tolist() for n, x in tensors.items()}


def gradients(case, kind=torch.float64):
    torch.set_default_dtype(kind)
    begin(case, kind)
    w = leaves(case, kind)
    with torch.backends.mkldnn.flags(enabled=False):  # its LSTM has no bfloat16 on processors without AVX-512
        with torch.autocast("cpu", dtype=torch.bfloat16) if kind == torch.float32 else nullcontext():
            loss, whole = losses(case, w, batch(case, kind))
        whole.backward()
    found = {n: p.grad for n, p in w.items() if p.requires_grad}
    return {"loss": loss.item(), "norm": sum((g * g).sum() for g in found.values()).sqrt().item(), "gradients": values(found)}


def train(case, name):
    torch.set_default_dtype(torch.float64)
    begin(case, torch.float64)
    w, b = leaves(case, torch.float64), batch(case, torch.float64)
    trained = {n: p for n, p in w.items() if p.requires_grad}
    hyper = dict(case["optimizers"][name])
    kind = hyper.pop("kind")
    groups = [{"params": [p for p in trained.values() if p.dim() >= 2]},
              {"params": [p for p in trained.values() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = OPTIMIZERS[kind](groups, **hyper, **({"lambd": 0.0} if kind == "asgd" else {}))
    for _ in range(case["steps"]):
        optimizer.zero_grad()
        losses(case, w, b)[1].backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), case["clip"])
        optimizer.step()
    assert not masks, "masks that nothing used"
    return values({n: optimizer.state[p]["ax"] if kind == "asgd" and p.requires_grad else p for n, p in w.items()})


def run(case):
    out = gradients(case)
    out["updates"] = {name: train(case, name) for name in case["optimizers"] or {}}
    if case["bf16"]:
        out["bf16"] = gradients(case, torch.float32)
    return out


torch.set_num_threads(1)
json.dump([run(case) for case in json.load(sys.stdin)], sys.stdout)
