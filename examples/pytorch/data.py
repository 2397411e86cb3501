"""Reads the data of an example job as avgpiped does: the same samples, the same tokens, the same part held out.

Shapes: N samples, T positions, S tokens of a stream.
"""
import csv
import glob
import json
import os
import re
import struct
import unicodedata

import numpy as np
import torch

IGNORED = -1  # the target of a position that no loss is computed for


class Bytes:
    """A token is a byte. Control characters stand for what is no text."""

    size, special = 256, {"[PAD]": 0, "[CLS]": 2, "[SEP]": 3, "[MASK]": 26}

    def encode(self, text):
        return list(text.encode())

    def id(self, token):
        return self.special[token]


class Tokenizer:
    """A tokenizer.json with byte-level BPE or lower-case WordPiece, the two that the examples are prepared with."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        model, self.special = content["model"], {token["content"]: token["id"] for token in content["added_tokens"]}
        self.vocabulary, self.size, self.known = model["vocab"], len(model["vocab"]), {}
        self.word_piece = model["type"] == "WordPiece"
        if not self.word_piece:
            self.ranks = {tuple(pair.split(" ") if isinstance(pair, str) else pair): rank for rank, pair in enumerate(model["merges"])}
            visible = [b for b in range(256) if 32 < b < 127 or 160 < b != 173]
            hidden = [b for b in range(256) if b not in visible]
            self.names = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}
            self.pattern = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")

    def id(self, token):
        return self.vocabulary[token]

    def encode(self, text):
        ids = []
        for word in self.words(text):
            if word not in self.known:
                cut = self.pieces if self.word_piece else self.merged
                self.known[word] = [self.vocabulary[token] for token in cut(word)]
            ids += self.known[word]
        return ids

    def words(self, text):
        if not self.word_piece:
            return self.pattern.findall(text)
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn").lower()
        return re.findall(r"[^\W_]+|[^\w\s]|_", text)

    def merged(self, word):
        tokens = [self.names[b] for b in word.encode()]
        while len(tokens) > 1:
            rank, i = min((self.ranks.get(pair, len(self.ranks)), i) for i, pair in enumerate(zip(tokens, tokens[1:])))
            if rank == len(self.ranks):
                break
            tokens[i:i + 2] = [tokens[i] + tokens[i + 1]]
        return tokens

    def pieces(self, word):
        tokens, start = [], 0
        while start < len(word):  # the longest piece first
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.vocabulary:
                    break
            else:
                return ["[UNK]"]
            tokens.append(piece)
            start = end
        return tokens


def tokens_of(path, section, tokenizer):
    """The line of tokens of one file, an end token after each document: (S)."""
    if section.get("format") == "tokens":
        with open(path, "rb") as file:
            magic, _, width, count = struct.unpack("<8sIIQ", file.read(24))
        assert magic == b"AVGTOKEN", path
        ids = np.fromfile(path, {1: "<u1", 2: "<u2", 4: "<u4"}[width], count, offset=128)
        return torch.from_numpy(ids.astype(np.int64))
    with open(path, encoding="utf-8") as file:
        return torch.tensor(tokenizer.encode(file.read()))


def windows(path, section, tokenizer, length):
    """Windows of T+1 tokens, T apart: (N,T+1)."""
    ids = tokens_of(path, section, tokenizer)
    return ids.unfold(0, length + 1, length)


def rows(path, section):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)) if section["format"] == "csv" else [json.loads(line) for line in file]


def padded(lists, length, fill):
    return torch.tensor([ids[:length] + [fill] * (length - len(ids)) for ids in lists])


def pairs(path, section, tokenizer, length):
    """Pairs of texts, [CLS] a [SEP] b [SEP], and their classes. The longer text is cut."""
    columns, cls, sep = section["columns"], tokenizer.id("[CLS]"), tokenizer.id("[SEP]")
    ids, types, labels = [], [], []
    for row in rows(path, section):
        a, b = tokenizer.encode(row[columns["text"]]), tokenizer.encode(row[columns["text_pair"]])
        while len(a) + len(b) > length - 3:
            (a if len(a) > len(b) else b).pop()
        ids.append([cls] + a + [sep] + b + [sep])
        types.append([0] * (len(a) + 2) + [1] * (len(b) + 1))
        labels.append(section["labels"].index(row[columns["label"]]))
    return {"ids": padded(ids, length, tokenizer.id("[PAD]")), "types": padded(types, length, 0),
            "mask": padded([[1] * len(x) for x in ids], length, 0), "targets": torch.tensor(labels)}


def translations(path, section, tokenizer, length):
    begin, end, pad = (tokenizer.id(name) for name in ("<s>", "</s>", "<pad>"))
    source, target = [], []
    for row in rows(path, section):
        source.append((tokenizer.encode(row["source"]) + [end])[:length])
        target.append((tokenizer.encode(row["target"]) + [end])[:length])
    return {"ids": padded(source, length, pad), "mask": padded([[1] * len(x) for x in source], length, 0),
            "decoder_ids": padded([[begin] + x[:-1] for x in target], length, pad), "targets": padded(target, length, IGNORED)}


def images(paths, section):
    arrays = {}
    for path in sorted(paths):
        with open(path, "rb") as file:
            dimensions = struct.unpack(">I", file.read(4))[0] & 255
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            arrays[dimensions] = torch.from_numpy(np.frombuffer(file.read(), np.uint8).reshape(shape).copy())
    mean, std = section.get("mean", [0])[0], section.get("std", [1])[0]
    return {"pixels": ((arrays[3].float() / 255 - mean) / std)[:, None], "targets": arrays[1].long()}


def hide(batch, tokenizer, share, generator):
    """Chooses tokens of windows (B,T) that are to be guessed: 80% hidden, 10% another, 10% as they are (Devlin et al. 2019)."""
    ids, special = batch["ids"].clone(), torch.tensor(list(tokenizer.special.values()))
    text = torch.tensor(sorted(set(range(tokenizer.size)) - set(tokenizer.special.values())))
    draw, kind = torch.rand(ids.shape, generator=generator), torch.rand(ids.shape, generator=generator)
    chosen = (draw < share) & ~torch.isin(ids, special)
    targets = torch.where(chosen, ids, torch.tensor(IGNORED))
    ids[chosen & (kind < 0.8)] = tokenizer.id("[MASK]")
    other = chosen & (kind >= 0.8) & (kind < 0.9)
    ids[other] = text[torch.randint(len(text), (int(other.sum()),), generator=generator)]
    return {**batch, "ids": ids, "targets": targets}


class Data:
    """Train and held-out samples of a job: dictionaries of tensors with N samples each."""

    def __init__(self, job, directory, task, length):
        section = self.section = job["data"]
        self.task, self.length = task, length
        name = section.get("tokenizer", "bytes")
        self.tokenizer = Bytes() if name == "bytes" else Tokenizer(os.path.join(directory, name))
        find = lambda key: [p for f in section[key] for p in sorted(glob.glob(os.path.join(directory, f)))]
        self.train, self.held = self.read(find("files")), self.read(find("validation"))
        self.generator = torch.Generator().manual_seed(0)

    def read(self, paths):
        path, section, length = paths[0], self.section, self.length
        if self.task == "images":
            return images(paths, section)
        if self.task == "classification":
            return pairs(path, section, self.tokenizer, length)
        if self.task == "translation":
            return translations(path, section, self.tokenizer, length)
        if self.task == "masked":
            inner = windows(path, section, self.tokenizer, length - 2)[:, :-1]
            edge = lambda name: torch.full((len(inner), 1), self.tokenizer.id(name))
            ids = torch.cat([edge("[CLS]"), inner, edge("[SEP]")], 1)
            return {"ids": ids, "types": torch.zeros_like(ids), "mask": torch.ones_like(ids)}
        ids = windows(path, section, self.tokenizer, length)
        return {"ids": ids[:, :-1], "targets": ids[:, 1:]}

    def pick(self, samples, index, generator):
        batch = {name: values[index] for name, values in samples.items()}
        return hide(batch, self.tokenizer, self.section.get("masked", 0.15), generator) if self.task == "masked" else batch

    def batches(self, size):
        """Batches without end, every epoch in another order."""
        count, order = len(self.train[next(iter(self.train))]), torch.empty(0, dtype=torch.long)
        while True:
            while len(order) < size:
                order = torch.cat([order, torch.randperm(count, generator=self.generator)])
            yield self.pick(self.train, order[:size], self.generator)
            order = order[size:]

    def evaluation(self, size=50):
        generator, count = torch.Generator().manual_seed(1), len(self.held[next(iter(self.held))])
        for first in range(0, count, size):
            yield self.pick(self.held, torch.arange(first, min(first + size, count)), generator)
