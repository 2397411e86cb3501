"""Plain PyTorch forward passes of gpt2, llama, mistral, qwen2 and bert: weights by Hugging Face's tensor names, configs with its
fields, and the semantics of its GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM,
BertForSequenceClassification and BertForMaskedLM, without dropout."""
import math

import torch
import torch.nn.functional as F


def centre_norms(w):
    """Moves the weights of norms to about 1, so that what follows them is neither small nor large."""
    for name, p in w.items():
        if "norm" in name.lower() and name.endswith("weight"):
            p.data += 1


def linear(w, name, x):
    return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))


def layer_norm(w, name, x, epsilon):
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], epsilon)


def gelu(x, kind):
    if kind == "gelu":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    assert kind == "gelu_new", kind
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(q, k, v, hidden):
    """q (B,T,H,S), k and v (B,T,KV,S); hidden (B or 1,1,T,T) is true where a query does not see a key."""
    groups = q.shape[2] // k.shape[2]
    q, k, v = [x.transpose(1, 2) for x in (q, k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2))]
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def causal(t, window=None):
    """True where a query does not see a key: a later one or, with a window, one that lies window positions back or more."""
    distance = torch.arange(t)[:, None] - torch.arange(t)[None, :]
    hidden = distance < 0
    return (hidden | (distance >= window) if window else hidden)[None, None]


def gpt2(config, w, ids):
    d, heads, epsilon = config["n_embd"], config["n_head"], config["layer_norm_epsilon"]
    b, t = ids.shape

    def conv1d(name, x):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:t]
    for i in range(config["n_layer"]):
        h = f"transformer.h.{i}."
        qkv = conv1d(h + "attn.c_attn", layer_norm(w, h + "ln_1", x, epsilon))
        q, k, v = [z.view(b, t, heads, d // heads) for z in qkv.split(d, 2)]
        x = x + conv1d(h + "attn.c_proj", attend(q, k, v, causal(t)))
        u = conv1d(h + "mlp.c_fc", layer_norm(w, h + "ln_2", x, epsilon))
        x = x + conv1d(h + "mlp.c_proj", gelu(u, "gelu_new"))
    head = w.get("lm_head.weight", w["transformer.wte.weight"])
    return layer_norm(w, "transformer.ln_f", x, epsilon) @ head.T


def rms_norm(w, name, x, epsilon):
    return w[name + ".weight"] * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def frequencies(s, theta, scaling):
    """Angles per position of rotary positions, slowed down as rope_scaling says."""
    f = theta ** (-torch.arange(0, s, 2).double() / s)
    if not scaling or scaling["rope_type"] == "default":
        return f
    if scaling["rope_type"] == "linear":
        return f / scaling["factor"]
    assert scaling["rope_type"] == "llama3", scaling
    low, high, original = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    length = 2 * math.pi / f
    smooth = (original / length - low) / (high - low)
    between = (1 - smooth) * f / scaling["factor"] + smooth * f
    return torch.where(length > original / low, f / scaling["factor"], torch.where(length < original / high, f, between))


def rotate(x, f):
    """Rotary positions of x (B,T,H,S): elements i and S/2 + i turn together, by f[i] per position."""
    t, s = x.shape[1], x.shape[3]
    angles = torch.outer(torch.arange(t).double(), f).to(x.dtype)
    cos, sin = [torch.cat([f(angles)] * 2, 1)[None, :, None] for f in (torch.cos, torch.sin)]
    return x * cos + torch.cat([-x[..., s // 2:], x[..., :s // 2]], -1) * sin


def window_of(config, i):
    """How many positions layer i looks back over, itself included; None for all."""
    if config.get("model_type") == "qwen2":
        used = config.get("use_sliding_window") and i >= config.get("max_window_layers", 28)
        return config["sliding_window"] if used else None
    return config.get("sliding_window")


def llama(config, w, ids):
    heads, kv = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    s = config.get("head_dim") or config["hidden_size"] // heads
    epsilon, f = config["rms_norm_eps"], frequencies(s, config["rope_theta"], config.get("rope_scaling"))
    b, t = ids.shape
    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        h = f"model.layers.{i}."
        n = rms_norm(w, h + "input_layernorm", x, epsilon)
        q = rotate(linear(w, h + "self_attn.q_proj", n).view(b, t, heads, s), f)
        k = rotate(linear(w, h + "self_attn.k_proj", n).view(b, t, kv, s), f)
        v = linear(w, h + "self_attn.v_proj", n).view(b, t, kv, s)
        x = x + linear(w, h + "self_attn.o_proj", attend(q, k, v, causal(t, window_of(config, i))))
        n = rms_norm(w, h + "post_attention_layernorm", x, epsilon)
        u = F.silu(linear(w, h + "mlp.gate_proj", n)) * linear(w, h + "mlp.up_proj", n)
        x = x + linear(w, h + "mlp.down_proj", u)
    head = w["model.embed_tokens.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return rms_norm(w, "model.norm", x, epsilon) @ head.T


def bert(config, w, ids, types, mask):
    heads, epsilon, act = config["num_attention_heads"], config["layer_norm_eps"], config["hidden_act"]
    b, t = ids.shape
    hidden = (mask == 0)[:, None, None, :]
    e = "bert.embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "position_embeddings.weight"][:t] + w[e + "token_type_embeddings.weight"][types]
    x = layer_norm(w, e + "LayerNorm", x, epsilon)
    for i in range(config["num_hidden_layers"]):
        h = f"bert.encoder.layer.{i}."
        q, k, v = [linear(w, f"{h}attention.self.{n}", x).view(b, t, heads, -1) for n in ("query", "key", "value")]
        a = linear(w, h + "attention.output.dense", attend(q, k, v, hidden))
        x = layer_norm(w, h + "attention.output.LayerNorm", x + a, epsilon)
        u = linear(w, h + "output.dense", gelu(linear(w, h + "intermediate.dense", x), act))
        x = layer_norm(w, h + "output.LayerNorm", x + u, epsilon)
    if config["architectures"] in ("BertForSequenceClassification", ["BertForSequenceClassification"]):
        return linear(w, "classifier", torch.tanh(linear(w, "bert.pooler.dense", x[:, 0])))
    p = "cls.predictions."
    x = layer_norm(w, p + "transform.LayerNorm", gelu(linear(w, p + "transform.dense", x), act), epsilon)
    return x @ w[e + "word_embeddings.weight"].T + w[p + "bias"]


def logits(config, w, ids, types=None, mask=None):
    family = config["model_type"]
    if family == "bert":
        return bert(config, w, ids, types, mask)
    return {"gpt2": gpt2, "llama": llama, "mistral": llama, "qwen2": llama}[family](config, w, ids)
