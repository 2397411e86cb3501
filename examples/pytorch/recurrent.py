"""AWD-LSTM (Merity et al. 2018) and GNMT (Wu et al. 2016, in the form of the MLPerf reference) in plain PyTorch.

Shapes: B samples, T positions, D width, V vocabulary.
"""
import torch
from torch import nn
from torch.nn import functional as F


def variational(x, rate, training):
    """x: (B,T,D), one mask for all positions of a sample (Gal and Ghahramani 2016)."""
    return x * F.dropout(torch.ones_like(x[:, :1]), rate, training)


class AWDLSTM(nn.Module):
    def __init__(self, c):
        super().__init__()
        v, d, n = c["ntoken"], c["ninp"], c["nlayers"]
        self.rate = {name: c[name] for name in ("dropout", "dropouth", "dropouti", "dropoute", "wdrop")}
        self.alpha, self.beta = c.get("alpha", 2.0), c.get("beta", 1.0)
        self.encoder, self.bias = nn.Embedding(v, d), nn.Parameter(torch.zeros(v))
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        widths = [d] + [c["nhid"]] * (n - 1) + [d]
        self.rnns = nn.ModuleList(nn.LSTM(i, o, batch_first=True) for i, o in zip(widths, widths[1:]))
        self.penalty = 0.0  # what activation regularisation adds to the last batch's loss

    def lstm(self, rnn, x):
        state = x.new_zeros(1, len(x), rnn.hidden_size)
        recurrent = F.dropout(rnn.weight_hh_l0, self.rate["wdrop"], self.training)
        weights = [rnn.weight_ih_l0, recurrent, rnn.bias_ih_l0, rnn.bias_hh_l0]
        return torch._VF.lstm(x, (state, state), weights, True, 1, 0.0, self.training, False, True)[0]

    def forward(self, batch):
        words = F.dropout(self.encoder.weight.new_ones(len(self.encoder.weight), 1), self.rate["dropoute"], self.training)
        x = variational(F.embedding(batch["ids"], self.encoder.weight * words), self.rate["dropouti"], self.training)
        for i, rnn in enumerate(self.rnns):
            raw = self.lstm(rnn, x)
            last = i == len(self.rnns) - 1
            x = variational(raw, self.rate["dropout" if last else "dropouth"], self.training)
        self.penalty = self.alpha * x.pow(2).mean() + self.beta * (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
        return F.linear(x, self.encoder.weight, self.bias)


class GNMT(nn.Module):
    """The embeddings of both languages are shared."""

    def __init__(self, c):
        super().__init__()
        v, d, n = c["vocab_size"], c["hidden_size"], c["num_layers"]
        self.rate, self.smoothing = c.get("dropout", 0.2), c.get("smoothing", 0.1)
        self.embedder, self.classifier = nn.Embedding(v, d), nn.Linear(d, v)
        self.first = nn.LSTM(d, d, batch_first=True, bidirectional=True)
        self.encoder = nn.ModuleList(nn.LSTM(2 * d if i == 0 else d, d, batch_first=True) for i in range(n - 1))
        self.attending = nn.LSTM(d, d, batch_first=True)
        self.query, self.key = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.att, self.scale, self.bias = nn.Parameter(torch.empty(d)), nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(d))
        self.decoder = nn.ModuleList(nn.LSTM(2 * d, d, batch_first=True) for _ in range(n - 1))
        for p in self.parameters():
            nn.init.uniform_(p, -0.1, 0.1)
        nn.init.constant_(self.scale, d ** -0.5)
        nn.init.zeros_(self.bias)

    def drop(self, x):
        return F.dropout(x, self.rate, self.training)

    def encode(self, ids, mask):
        packed = nn.utils.rnn.pack_padded_sequence(self.drop(self.embedder(ids)), mask.sum(1), True, False)
        x = nn.utils.rnn.pad_packed_sequence(self.first(packed)[0], True, total_length=ids.shape[1])[0]
        for i, rnn in enumerate(self.encoder):
            y = rnn(self.drop(x))[0]
            x = x + y if i >= 1 else y
        return x

    def attend(self, y, x, mask):
        """Additive, with a normalised vector (Bahdanau et al. 2015; Salimans and Kingma 2016)."""
        vector = self.att / self.att.norm() * self.scale
        scores = torch.tanh(self.query(y)[:, :, None] + self.key(x)[:, None] + self.bias) @ vector
        return scores.masked_fill(mask[:, None] == 0, float("-inf")).softmax(-1) @ x

    def forward(self, batch):
        x = self.encode(batch["ids"], batch["mask"])
        y = self.attending(self.drop(self.embedder(batch["decoder_ids"])))[0]
        context = self.attend(y, x, batch["mask"])
        for i, rnn in enumerate(self.decoder):
            z = rnn(self.drop(torch.cat([y, context], -1)))[0]
            y = z + y if i >= 1 else z
        return self.classifier(y)
