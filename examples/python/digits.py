"""Trains a convolutional network to read handwritten digits, on one processor."""

import argparse
import struct

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Linear(2 * width * 7 * 7, 64), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(64, 10))

    def forward(self, x):  # (samples, 1, 28, 28)
        x = self.features(x)
        x = torch.flatten(x, 1)
        return self.classifier(x)  # (samples, 10)


def build(width=8, dropout=0.2):
    net = Net(width, dropout)
    return nn.Sequential(*net.features, nn.Flatten(), *net.classifier)


def read_idx(path):
    """A file of MNIST as a tensor of bytes."""
    with open(path, "rb") as file:
        content = file.read()
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    return torch.frombuffer(bytearray(content[4 + 4 * dimensions :]), dtype=torch.uint8).view(shape)


def read(data, part):
    """Images (samples, 1, 28, 28) and labels (samples)."""
    images = read_idx(f"{data}/{part}-images-idx3-ubyte").unsqueeze(1) / 255
    return (images - 0.1307) / 0.3081, read_idx(f"{data}/{part}-labels-idx1-ubyte").long()


@torch.no_grad()
def evaluate(model, images, labels):
    model.eval()
    logits = model(images)
    model.train()
    return nn.functional.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="examples/data/mnist", help="directory of MNIST's files")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    images, labels = read(args.data, "train")
    held_out = read(args.data, "t10k")

    torch.manual_seed(1)
    model = Net(args.width, args.dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    print("held-out loss {:.6f}, accuracy {:.4f}".format(*evaluate(model, *held_out)))
    batches = iter(())
    for step in range(args.steps):
        batch = next(batches, None)
        if batch is None:  # an epoch is over
            batches = iter(torch.randperm(len(labels)).split(args.batch))
            batch = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    print("held-out loss {:.6f}, accuracy {:.4f}".format(*evaluate(model, *held_out)))


if __name__ == "__main__":
    main()
