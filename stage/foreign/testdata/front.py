"""Heads behind layers that are not of PyTorch."""

import torch
from torch import nn


def projection(width, vocabulary):
    return nn.Sequential(nn.Linear(width, vocabulary, bias=False))


class Classifier(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.dense, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, hidden, mask):
        return self.classifier(torch.tanh(self.dense(hidden[:, 0] * mask[:, :1])))  # every text has a first token


def classifier(width, classes):
    return [Classifier(width, classes)]


class Ends(nn.Module):
    def forward(self, hidden):
        return hidden.detach()


def ends(width, vocabulary):
    return [Ends(), nn.Linear(width, vocabulary)]
