#!/usr/bin/python3
"""Reads an exported model directory by Hugging Face's names, as from_pretrained does, and writes another one.

    /usr/bin/python3 roundtrip.py FROM TO < input.json > logits.json      (Debian: apt-get install python3-torch)

The input holds ids (B,T), and token_types and mask for bert. The output holds "read", the logits of the model in FROM, and
"written", those of the model in TO: its weights are FROM's, moved a little, in two files with an index. Both are computed by the
plain PyTorch forward passes of stage/model/testdata/plain.py.
"""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../stage/model/testdata"))

import torch

from plain import logits
from recording import save


def load_file(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    header, out = json.loads(data[8:8 + n]), {}
    for name, entry in header.items():
        if name == "__metadata__":
            assert entry["format"] == "pt", entry
            continue
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        values = struct.unpack(f"<{(end - begin) // 4}f", data[8 + n + begin:8 + n + end])
        out[name] = torch.tensor(values).reshape(entry["shape"])
    return out


def load(directory):
    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return config, load_file(os.path.join(directory, "model.safetensors"))
    with open(index) as f:
        index = json.load(f)
    weights = {}
    for name in sorted(set(index["weight_map"].values())):
        weights.update(load_file(os.path.join(directory, name)))
    assert set(weights) == set(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(4 * w.numel() for w in weights.values())
    return config, weights


def write(directory, config, weights):
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f)
    names = sorted(weights)
    half = len(names) // 2
    files = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, part in files.items():
        save(os.path.join(directory, file), {n: weights[n] for n in part}, {"format": "pt"})
    total = sum(4 * w.numel() for w in weights.values())
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": {n: file for file, part in files.items() for n in part}}, f)


def main():
    given = {name: torch.tensor(rows) for name, rows in json.load(sys.stdin).items()}
    config, weights = load(sys.argv[1])
    args = [given[name] for name in ("ids", "token_types", "mask") if name in given]
    torch.manual_seed(1)
    moved = {name: (w + 0.05 * torch.randn_like(w)).detach() for name, w in weights.items()}
    write(sys.argv[2], config, moved)
    json.dump({"read": logits(config, weights, *args).reshape(-1).tolist(),
               "written": logits(config, moved, *args).reshape(-1).tolist()}, sys.stdout)


if __name__ == "__main__":
    main()
