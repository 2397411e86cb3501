#!/usr/bin/python3
"""Records vgg.safetensors (no norm, a classifier with a hidden layer) and vgg-batch.safetensors (batch norm, one linear
layer): tiny networks of Simonyan and Zisserman's form in plain PyTorch, float64, with torchvision's tensor names, without
dropout.

    /usr/bin/python3 record_vgg.py      (Debian: apt-get install python3-torch)

What is in the files: see images.py.
"""
import torch
import torch.nn.functional as F

from images import norm_shapes, record

COMMON = dict(num_labels=5, num_channels=3, norm_eps=1e-5, norm_momentum=0.2, dropout=0.0)
CONFIGS = {
    "vgg": dict(COMMON, image_size=9, hidden_sizes=[4, 6], depths=[1, 2], classifier_sizes=[10, 8], norm="none"),
    "vgg-batch": dict(COMMON, image_size=8, hidden_sizes=[5, 8], depths=[2, 1], classifier_sizes=[], norm="batch"),
}


def features(config):
    """The name of each convolution and of its norm, widths in and out, and whether a pool follows."""
    before, at = config["num_channels"], 0
    for width, depth in zip(config["hidden_sizes"], config["depths"]):
        for i in range(depth):
            yield f"features.{at}", f"features.{at + 1}", before, width, i == depth - 1
            before, at = width, at + (2 if config["norm"] == "none" else 3) + (i == depth - 1)


def shapes(config):
    out = {}
    for name, norm, before, width, _ in features(config):
        out.update({name + ".weight": (width, before, 3, 3), name + ".bias": (width,)})
        if config["norm"] != "none":
            out.update(norm_shapes(config, norm, width))
    size = config["image_size"] >> len(config["hidden_sizes"])
    before = config["hidden_sizes"][-1] * size * size
    for i, width in enumerate(config["classifier_sizes"] + [config["num_labels"]]):
        out.update({f"classifier.{3 * i}.weight": (width, before), f"classifier.{3 * i}.bias": (width,)})
        before = width
    return out


def forward(net, x):
    for name, norm, _, _, pool in features(net.config):
        x = net.conv(x, name, 1, 1)
        x = F.relu(x if net.config["norm"] == "none" else net.norm(x, norm))
        x = F.max_pool2d(x, 2) if pool else x
    x = x.flatten(1)
    hidden = len(net.config["classifier_sizes"])
    for i in range(hidden):
        x = F.relu(net.linear(x, f"classifier.{3 * i}"))
    return net.linear(x, f"classifier.{3 * hidden}")


def main():
    torch.manual_seed(22)
    for name, config in CONFIGS.items():
        size = config["image_size"]
        record(name + ".safetensors", forward, config, shapes(config), (config["num_channels"], size, size),
               micros=2 if config["norm"] == "batch" else None)


if __name__ == "__main__":
    main()
