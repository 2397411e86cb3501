"""ResNet (He et al. 2016), VGG (Simonyan and Zisserman 2015) and a multilayer perceptron in plain PyTorch.

Shapes: B samples, C channels, H rows, W columns.
"""
from torch import nn
from torch.nn import functional as F


def fresh(model):
    """Fresh weights as avgpiped starts: convolutions after He et al. 2015, equation 14; biases 0."""
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            if m.bias is not None:
                nn.init.zeros_(m.bias)
    return model


class GroupNorm(nn.GroupNorm):
    """PyTorch 1.13 has none for bf16."""

    def forward(self, x):
        return super().forward(x.float())


def normed(channels, groups):
    return GroupNorm(groups, channels) if groups else nn.BatchNorm2d(channels)


class Block(nn.Module):
    """Two convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, i, o, stride, groups):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), normed(o, groups)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), normed(o, groups)
        plain = stride == 1 and i == o
        self.shortcut = nn.Identity() if plain else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), normed(o, groups))

    def forward(self, x):
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.shortcut(x))


class Images(nn.Sequential):
    def forward(self, batch):
        return super().forward(batch["pixels"])


def resnet(c):
    assert c["layer_type"] == "basic" and c["stem"] == "cifar", c
    groups, width = c.get("groups", 32) if c.get("norm") == "group" else 0, c["embedding_size"]
    layers = [nn.Conv2d(c.get("num_channels", 3), width, 3, 1, 1, bias=False), normed(width, groups), nn.ReLU()]
    for group, (out, depth) in enumerate(zip(c["hidden_sizes"], c["depths"])):
        for i in range(depth):
            layers.append(Block(width, out, 2 if group and i == 0 else 1, groups))
            width = out
    return Images(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, c["num_labels"]))


def vgg(c):
    norm, size = c.get("norm", "none"), c["image_size"]
    groups, width, layers = c.get("groups", 32) if norm == "group" else 0, c.get("num_channels", 3), []
    for out, depth in zip(c["hidden_sizes"], c["depths"]):
        for _ in range(depth):
            layers.append(nn.Conv2d(width, out, 3, 1, 1))
            if norm != "none":
                layers.append(normed(out, groups))
            layers.append(nn.ReLU())
            width = out
        layers.append(nn.MaxPool2d(2))
        size //= 2
    layers.append(nn.Flatten())
    width *= size * size
    for out in c["classifier_sizes"]:
        layers += [nn.Linear(width, out), nn.ReLU(), nn.Dropout(c.get("dropout", 0.5))]
        width = out
    model = Images(*layers, nn.Linear(width, c["num_labels"]))
    for m in model.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, 0.0, 0.01)
            nn.init.zeros_(m.bias)
    return model


def mlp(c):
    width, layers = c.get("num_channels", 1) * c.get("image_size", 28) ** 2, [nn.Flatten()]
    for out in c["hidden_sizes"]:
        linear = nn.Linear(width, out)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU(), nn.Dropout(c.get("dropout", 0.0))]
        width = out
    return Images(*layers, nn.Linear(width, c["num_labels"]))


def build(family, c):
    return fresh({"resnet": resnet, "vgg": vgg, "mlp": mlp}[family](c))
