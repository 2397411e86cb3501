#!/usr/bin/python3
"""Records mlp.safetensors (ReLU, images) and mlp-features.safetensors (GELU, rows of features): tiny fully connected networks
in plain PyTorch, float64, without dropout.

    /usr/bin/python3 record_mlp.py      (Debian: apt-get install python3-torch)

What is in the files: see images.py.
"""
import torch
import torch.nn.functional as F

from images import record

CONFIGS = {
    "mlp": dict(image_size=5, num_channels=2, hidden_sizes=[12, 9, 8], hidden_act="relu", num_labels=6),
    "mlp-features": dict(num_features=11, hidden_sizes=[10, 8, 8], hidden_act="gelu", num_labels=3),
}


def pixels(config):
    size = config.get("image_size")
    return (config["num_channels"], size, size) if size else (1, 1, config["num_features"])


def shapes(config):
    out, before = {}, torch.Size(pixels(config)).numel()
    for i, width in enumerate(config["hidden_sizes"] + [config["num_labels"]]):
        out.update({f"layers.{i}.weight": (width, before), f"layers.{i}.bias": (width,)})
        before = width
    return out


def forward(net, x):
    x, hidden = x.flatten(1), len(net.config["hidden_sizes"])
    for i in range(hidden):
        x = {"relu": F.relu, "gelu": F.gelu}[net.config["hidden_act"]](net.linear(x, f"layers.{i}"))
    return net.linear(x, f"layers.{hidden}")


def main():
    torch.manual_seed(23)
    for name, config in CONFIGS.items():
        record(name + ".safetensors", forward, config, shapes(config), pixels(config))


if __name__ == "__main__":
    main()
