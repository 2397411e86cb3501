#!/usr/bin/python3
"""Records resnet.safetensors (bottlenecks, batch norm, the stem for ImageNet) and resnet-group.safetensors (basic blocks,
group norm, the stem for CIFAR): tiny residual networks in plain PyTorch, float64, with torchvision's tensor names.

    /usr/bin/python3 record_resnet.py      (Debian: apt-get install python3-torch)

What is in the files: see images.py.
"""
import torch
import torch.nn.functional as F

from images import norm_shapes, record

COMMON = dict(num_labels=7, num_channels=3, norm_eps=1e-5, norm_momentum=0.3)
CONFIGS = {
    "resnet": dict(COMMON, image_size=24, stem="imagenet", embedding_size=6, hidden_sizes=[8, 16], depths=[2, 1],
                   layer_type="bottleneck", norm="batch"),
    "resnet-group": dict(COMMON, image_size=7, stem="cifar", embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2],
                         layer_type="basic", norm="group", groups=2),
}


def blocks(config):
    """Name, widths in and out, and stride of each block."""
    before = config["embedding_size"]
    for group, width in enumerate(config["hidden_sizes"]):
        for i in range(config["depths"][group]):
            yield f"layer{group + 1}.{i}", before, width, 2 if i == 0 and group > 0 else 1
            before = width


def convolutions(config, before, width, stride):
    """Widths in and out, kernel and stride of a block's convolutions."""
    if config["layer_type"] == "basic":
        return [(before, width, 3, stride), (width, width, 3, 1)]
    inner = width // 4
    return [(before, inner, 1, 1), (inner, inner, 3, stride), (inner, width, 1, 1)]


def shapes(config):
    c, k = config, 7 if config["stem"] == "imagenet" else 3
    out = {"conv1.weight": (c["embedding_size"], c["num_channels"], k, k)}
    out.update(norm_shapes(c, "bn1", c["embedding_size"]))
    for name, before, width, stride in blocks(c):
        for i, (a, b, kernel, _) in enumerate(convolutions(c, before, width, stride), 1):
            out[f"{name}.conv{i}.weight"] = (b, a, kernel, kernel)
            out.update(norm_shapes(c, f"{name}.bn{i}", b))
        if stride != 1 or before != width:
            out[f"{name}.downsample.0.weight"] = (width, before, 1, 1)
            out.update(norm_shapes(c, f"{name}.downsample.1", width))
    out.update({"fc.weight": (c["num_labels"], c["hidden_sizes"][-1]), "fc.bias": (c["num_labels"],)})
    return out


def forward(net, x):
    c = net.config
    if c["stem"] == "imagenet":
        x = F.max_pool2d(F.relu(net.norm(net.conv(x, "conv1", 2, 3), "bn1")), 3, 2, 1)
    else:
        x = F.relu(net.norm(net.conv(x, "conv1", 1, 1), "bn1"))
    for name, before, width, stride in blocks(c):
        y, skip = x, x
        for i, (_, _, kernel, s) in enumerate(convolutions(c, before, width, stride), 1):
            y = net.norm(net.conv(F.relu(y) if i > 1 else y, f"{name}.conv{i}", s, kernel // 2), f"{name}.bn{i}")
        if stride != 1 or before != width:
            skip = net.norm(net.conv(x, name + ".downsample.0", stride), name + ".downsample.1")
        x = F.relu(y + skip)
    return net.linear(x.mean((2, 3)), "fc")


def main():
    torch.manual_seed(21)
    for name, config in CONFIGS.items():
        size = config["image_size"]
        record(name + ".safetensors", forward, config, shapes(config), (config["num_channels"], size, size),
               micros=2 if config["norm"] == "batch" else None)


if __name__ == "__main__":
    main()
