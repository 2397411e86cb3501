"""Models of many kinds of modules, as users write them."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Recurrent(nn.Module):
    """Takes each sample as a sequence, and gives what an LSTM says at its end."""

    def __init__(self, inputs, width):
        super().__init__()
        self.inputs = inputs
        self.lstm = nn.LSTM(inputs, width, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.lstm(x.view(x.shape[0], -1, self.inputs))[0][:, -1]


def recurrent():
    return nn.Sequential(Recurrent(3, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5))


class Context(nn.Module):
    """Gives each position the mean of those up to it."""

    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device).view(1, -1, 1)


def tied():
    embedding, head = nn.Embedding(11, 16), nn.Linear(16, 11, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, Context(), nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU(inplace=True), head)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(12, 8), nn.Linear(12, 8)

    def forward(self, x):
        return torch.sigmoid(self.left(x)), self.right(x), x


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.skip = nn.Linear(12, 8)

    def forward(self, gate, value, x):
        return gate * value, self.skip(x)


class Sum(nn.Module):
    def forward(self, a, b):
        return a + b


def several():
    return [Parts(), Joined(), Sum(), nn.Linear(8, 5)]


class Checkpointed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.2), nn.Tanh())

    def forward(self, x):
        return x + checkpoint(self.inner, x)


def mixed():
    frozen = nn.Linear(16, 16)
    for p in frozen.parameters():
        p.requires_grad_(False)
    return nn.Sequential(
        nn.Linear(12, 16), nn.LayerNorm(16), frozen, nn.Tanh(), nn.utils.weight_norm(nn.Linear(16, 16)), Checkpointed(16),
        nn.utils.spectral_norm(nn.Linear(16, 16)), nn.Linear(16, 5),
    )


def repeated():
    linear, act = nn.Linear(16, 16), nn.Tanh()
    return nn.Sequential(nn.Linear(12, 16), linear, act, linear, act, nn.Linear(16, 5))
