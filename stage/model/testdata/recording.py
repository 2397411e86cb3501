"""What the scripts of recurrent families share: the file format and the values that weights start with."""
import json
import struct

import torch


def fresh(shapes, scale=0.3):
    """Large random values everywhere, so that no term of any gradient is small by construction. Exactly what a float32 file
    holds."""
    return {name: (torch.randn(shape) * scale).float().double().requires_grad_() for name, shape in shapes.items()}


def lstm_shapes(path, width, hidden, both=False):
    """PyTorch's names and shapes of one LSTM layer."""
    shapes = {}
    for suffix in ("_l0", "_l0_reverse") if both else ("_l0",):
        shapes[f"{path}.weight_ih{suffix}"] = (4 * hidden, width)
        shapes[f"{path}.weight_hh{suffix}"] = (4 * hidden, hidden)
        shapes[f"{path}.bias_ih{suffix}"] = shapes[f"{path}.bias_hh{suffix}"] = (4 * hidden,)
    return shapes


def lstm(weights, path, x, lengths=None, both=False):
    """torch.nn.LSTM over x (B,T,In); with lengths, padding is packed away and comes back as zeros."""
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    names += [n + "_reverse" for n in names] if both else []
    flat = [weights[f"{path}.{n}"] for n in names]
    hidden = flat[1].shape[1]
    state = torch.zeros(2 if both else 1, x.shape[0], hidden)
    if lengths is None:
        return torch.lstm(x, (state, state), flat, True, 1, 0.0, False, both, True)[0]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out = torch.lstm(packed.data, packed.batch_sizes, (state, state), flat, True, 1, 0.0, False, both)[0]
    packed = torch.nn.utils.rnn.PackedSequence(out, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    return torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0]


def save(path, tensors, metadata):
    """Writes safetensors; metadata as JSON in strings."""
    header, blob = {"__metadata__": {k: json.dumps(v) for k, v in metadata.items()}}, b""
    for name, x in tensors.items():
        kind, code = {torch.float32: ("F32", "f"), torch.float64: ("F64", "d"), torch.int32: ("I32", "i")}[x.dtype]
        values = x.detach().reshape(-1).tolist()
        raw = struct.pack(f"<{len(values)}{code}", *values)
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)
