#!/usr/bin/python3
"""Computes layers with PyTorch's own modules, in float64: the second source of package layer.

Standard input is a JSON list of cases: kind and args of the module, shape and values of its input, of the gradient of its output
and of its parameters (names of package layer), and the masks of what is dropped out, in the order of use. Standard output is a
list of {"out", "din", "grads": {name: values}}. Images cross with their channels last. PyTorch 1.13 has no public
scaled_dot_product_attention; nn.MultiheadAttention is the reference of attention.
"""
import json
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.stateless import functional_call

masks = []


def given_dropout(x, p=0.5, training=True, inplace=False):
    """Stands for F.dropout, which every module of PyTorch calls."""
    return x * masks.pop(0).reshape(x.shape) if p > 0 and training else x


F.dropout = given_dropout


def lstm(a, w):
    directions = ["", "_reverse"] if a["bidirectional"] else [""]
    names = {f"{n}_l{i}{d}": w[f"l{i}.{n}_l0{d}"] for i in range(a["layers"]) for d in directions
             for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    module = nn.LSTM(a["in"], a["hidden"], a["layers"], batch_first=True, bidirectional=a["bidirectional"])
    module._flat_weights = [names[n] for n in module._flat_weights_names]  # which functional_call does not replace
    return lambda x: module(x)[0]


def attention_weights(w, prefix=""):
    """Of nn.MultiheadAttention, from one projection stored (in,out), as GPT-2's, or from three stored (out,in)."""
    if "qkv.weight" in w:
        return {prefix + "in_proj_weight": w["qkv.weight"].T, prefix + "in_proj_bias": w["qkv.bias"],
                prefix + "out_proj.weight": w["project.weight"].T, prefix + "out_proj.bias": w["project.bias"]}
    return {prefix + "in_proj_weight": torch.cat([w[n + ".weight"] for n in "qkv"]),
            prefix + "in_proj_bias": torch.cat([w[n + ".bias"] for n in "qkv"]),
            prefix + "out_proj.weight": w["project.weight"], prefix + "out_proj.bias": w["project.bias"]}


def future(t, causal):
    return torch.ones(t, t, dtype=torch.bool).triu(1) if causal else None


def attention(a, w):
    module = nn.MultiheadAttention(a["width"], a["heads"], dropout=a["rate"], batch_first=True)
    names = attention_weights(w)
    return lambda x: functional_call(
        module, names, (x, x, x), {"attn_mask": future(x.shape[1], a["causal"]), "need_weights": False})[0]


def encoder(a, w):
    act = {"relu": "relu", "gelu": "gelu", "gelu_new": lambda x: F.gelu(x, approximate="tanh")}[a["act"]]
    module = nn.TransformerEncoderLayer(a["width"], a["heads"], a["inner"], dropout=a["rate"], activation=act,
                                        layer_norm_eps=1e-5, batch_first=True, norm_first=a["norm_first"])
    module.dropout.p = 0.0  # behind the activation, where no model of ours drops anything
    names = attention_weights(w, "self_attn.")
    for theirs, ours in {"linear1": "up", "linear2": "down", "norm1": "norm1", "norm2": "norm2"}.items():
        for n in ("weight", "bias"):
            names[f"{theirs}.{n}"] = w[f"{ours}.{n}"]
    return lambda x: functional_call(module, names, (x, future(x.shape[1], a["causal"])))


def on_images(make):
    def case(a, w):
        module, names = make(a, w)

        def run(x):
            y = functional_call(module, names, (x.permute(0, 3, 1, 2),))
            return y.permute(0, 2, 3, 1)
        return run
    return case


def plain(w):
    return {name.split(".", 1)[1]: x for name, x in w.items()}


KINDS = {
    "lstm": lstm, "attention": attention, "encoder": encoder,
    "conv": on_images(lambda a, w: (nn.Conv2d(a["in"], a["out"], a["kernel"], a["stride"], a["padding"], bias=a["bias"]), plain(w))),
    "batchnorm": on_images(lambda a, w: (nn.BatchNorm2d(a["channels"], momentum=1.0), plain(w))),
    "groupnorm": on_images(lambda a, w: (nn.GroupNorm(a["groups"], a["channels"]), plain(w))),
    "maxpool": on_images(lambda a, w: (nn.MaxPool2d(a["kernel"], a["stride"], a["padding"]), {})),
}


def run(case):
    def tensor(x):
        return torch.tensor(x["values"]).reshape(x["shape"])

    masks.extend(torch.tensor(m) for m in case["masks"] or [])
    w = {name: tensor(x).requires_grad_("running" not in name) for name, x in case["params"].items()}
    x = tensor(case["in"]).requires_grad_()
    forward = KINDS[case["kind"]](case["args"], w)
    y = forward(x)
    assert not masks, "masks that nothing used"
    y.backward(tensor(case["dout"]).reshape(y.shape))
    # A momentum of 1 leaves the statistics of the batch in the buffers, the gradients of the layer's statistics.
    return {"out": y.detach().reshape(-1).tolist(), "din": x.grad.reshape(-1).tolist(),
            "grads": {n: (p.grad if p.requires_grad else p).reshape(-1).tolist() for n, p in w.items()}}


torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
json.dump([run(case) for case in json.load(sys.stdin)], sys.stdout)
