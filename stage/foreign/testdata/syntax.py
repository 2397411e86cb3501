import torch


def build(:
    pass
