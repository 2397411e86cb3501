"""What the scripts of image families share: norms by their config, and the recording of one batch.

Tensors in a recording (float32 unless said), of a batch of B samples that is cut into `micros` micro-batches:
  weights/NAME            before training, running statistics among them
  pixels, labels          (B,C,H,W); (B) int32
  logits, evaluation_loss (B,V); float64: of an evaluation, with the running statistics
  loss, norm              float64: mean loss in nats of training; global norm of its gradient
  gradients/NAME          of that loss; of a running statistic, the mean over the micro-batches of what batch norm found
  OPTIMIZER/NAME          the weights after STEPS steps on the same batch, gradients clipped to norm CLIP; a step moves running
                          statistics once, toward the mean over its micro-batches
"""
import torch
import torch.nn.functional as F

from recording import fresh, save

B, STEPS, CLIP = 4, 2, 5.0
OPTIMIZERS = {"sgd": dict(lr=5e-2, momentum=0.9, nesterov=True, weight_decay=0.1)}


class Net:
    """Weights by name, and what a forward pass does with them. In training, statistics of batch norm go to `found`."""

    def __init__(self, config, weights, training, found=None):
        self.config, self.weights, self.training, self.found = config, weights, training, found

    def conv(self, x, name, stride=1, padding=0):
        return F.conv2d(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"), stride, padding)

    def linear(self, x, name):
        return F.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, x, name):
        c, w = self.config, self.weights
        scale, shift = w[name + ".weight"], w[name + ".bias"]
        if c["norm"] == "group":
            return F.group_norm(x, c["groups"], scale, shift, c["norm_eps"])
        mean, var = w[name + ".running_mean"].detach().clone(), w[name + ".running_var"].detach().clone()
        # A momentum of 1 leaves PyTorch's own statistics of x in the buffers.
        y = F.batch_norm(x, mean, var, scale, shift, self.training, 1.0, c["norm_eps"])
        if self.training:
            self.found.setdefault(name + ".running_mean", []).append(mean)
            self.found.setdefault(name + ".running_var", []).append(var)
        return y


def norm_shapes(config, name, width):
    names = ["weight", "bias"] + (["running_mean", "running_var"] if config["norm"] == "batch" else [])
    return {f"{name}.{n}": (width,) for n in names}


def running(name):
    return ".running_" in name


def start(shapes):
    """Weights that keep activations of order 1, scales of norms about 1 and variances well above 0."""
    w = fresh(shapes, 1.0)
    for name, p in w.items():
        if p.dim() > 1:
            p.data *= p[0].numel() ** -0.5
        elif name.endswith("running_var"):
            p.data = p.data.abs() + 0.5
        else:
            p.data = p.data * 0.3 + (name.endswith("weight") and p.dim() == 1)
        p.data = p.data.float().double()
        p.requires_grad_(not running(name))
    return w


def loss_of(net, config, w, pixels, labels, micros):
    """The mean loss over micro-batches, and the mean of what their batch norms found."""
    found, losses = {}, []
    for x, y in zip(pixels.chunk(micros), labels.chunk(micros)):
        losses.append(F.cross_entropy(net(Net(config, w, True, found), x), y))
    return sum(losses) / micros, {name: sum(s) / micros for name, s in found.items()}


def train(net, config, weights, pixels, labels, micros, hyper):
    w = {n: p.detach().clone().requires_grad_(not running(n)) for n, p in weights.items()}
    trained = {n: p for n, p in w.items() if not running(n)}
    optimizer = torch.optim.SGD([{"params": [p for p in trained.values() if p.dim() >= 2]},
                                 {"params": [p for p in trained.values() if p.dim() < 2], "weight_decay": 0.0}], **hyper)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, found = loss_of(net, config, w, pixels, labels, micros)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), CLIP)
        optimizer.step()
        for name, value in found.items():
            w[name] += config["norm_momentum"] * (value - w[name])
    return w


def record(path, net, config, shapes, pixels_shape, micros=None):
    """net(Net, pixels) gives the logits. micros, when batch norm makes a difference, is how the batch is cut."""
    torch.set_default_dtype(torch.float64)
    w = start(shapes)
    pixels = torch.randn(B, *pixels_shape).float().double()
    labels = torch.randint(0, config["num_labels"], (B,))
    logits = net(Net(config, w, False), pixels)
    loss, found = loss_of(net, config, w, pixels, labels, micros or 1)
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in w.values() if p.requires_grad))
    tensors = {"pixels": pixels.float(), "labels": labels.int(), "logits": logits.float(), "loss": loss, "norm": norm,
               "evaluation_loss": F.cross_entropy(logits, labels)}
    for name, p in w.items():
        tensors["weights/" + name] = p.float()
        tensors["gradients/" + name] = (found[name] if running(name) else p.grad).float()
    for name, hyper in OPTIMIZERS.items():
        for n, p in train(net, config, w, pixels, labels, micros or 1, hyper).items():
            tensors[f"{name}/{n}"] = p.detach().float()
    save(path, tensors, {"config": config, "optimizers": OPTIMIZERS, "steps": STEPS, "clip": CLIP, "micros": micros or 0,
                         "torch": torch.__version__})
