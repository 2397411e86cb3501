"""Trains a user's model as a plain program of JAX or TensorFlow does: reads and writes what plain.py does."""

import importlib.util
import json
import sys

import numpy
from seeds import MASK, mix, stream


class Jax:
    def __init__(self, modules, seed, x):
        import jax

        self.jax, self.modules, self.values = jax, modules, {}
        key, self.trees = self.key(seed), []
        for module in modules:
            key, own = jax.random.split(key)
            self.trees.append(module.init(own, x) if hasattr(module, "init") else {"params": module[0](own, x.shape)[1]})
            x, _ = self.apply(len(self.trees) - 1, self.trees[-1], x, own)

    def key(self, seed):
        half, random = numpy.uint32, self.jax.random
        return random.fold_in(random.fold_in(random.PRNGKey(0), half(seed >> 32)), half(seed & 0xFFFFFFFF))

    def apply(self, number, tree, x, key):
        module = self.modules[number]
        if hasattr(module, "init"):
            return module.apply(tree, x, train=True, rngs={"dropout": key}, mutable=["batch_stats"])
        return module[1](tree["params"], x, rng=key, train=True), {}

    def pass_through(self, x, y, seeds, loss):
        """The loss and its gradients; running statistics go on."""

        def whole(parameters, x):
            after = []
            for number, (of, seed) in enumerate(zip(parameters, seeds)):
                x, changed = self.apply(number, {**self.trees[number], "params": of}, x, self.key(seed))
                after.append(changed)
            return loss(x, y), after

        parameters = [tree.get("params", ()) for tree in self.trees]
        value, pull, after = self.jax.vjp(lambda p: whole(p, x), parameters, has_aux=True)
        for tree, changed in zip(self.trees, after):
            tree.update(changed)
        return float(value), self.jax.tree_util.tree_leaves(pull(self.jax.numpy.ones(()))[0])

    def step(self, gradients, rate):
        gradients = iter(gradients)
        for tree in self.trees:
            tree["params"] = self.jax.tree_util.tree_map(lambda p: p - next(gradients) * rate, tree.get("params", ()))

    def named(self):
        for number, tree in enumerate(self.trees):
            for collection, of in tree.items():
                for path, leaf in self.jax.tree_util.tree_flatten_with_path(of)[0]:
                    yield ".".join([str(number)] + [collection] * (collection != "params") + [str(getattr(p, "key", getattr(p, "idx", ""))) for p in path]), leaf

    def tensor(self, x):
        return self.jax.numpy.asarray(x)


class TensorFlow:
    def __init__(self, model, x):
        import tensorflow

        self.tf, self.model = tensorflow, model
        for layer in model.layers:
            x = layer(x, training=False)

    def pass_through(self, x, y, seeds, loss):
        with self.tf.GradientTape() as tape:
            for layer, seed in zip(self.model.layers, seeds):
                self.tf.random.set_seed(seed)
                for v in layer.non_trainable_variables:
                    if "seed_generator_state" in v.name:
                        v.assign(numpy.array([seed >> 32, seed & 0xFFFFFFFF], "uint32"))
                x = layer(x, training=True)
            value = loss(x, y)
        return float(value), tape.gradient(value, list(self.model.trainable_variables))

    def step(self, gradients, rate):
        for v, g in zip(self.model.trainable_variables, gradients):
            v.assign_sub(g * rate)

    def named(self):
        for number, layer in enumerate(self.model.layers):
            for v in layer.variables:
                own = v.name.rpartition("/")[2].partition(":")[0]
                if own != "seed_generator_state":
                    yield f"{number}.{own}", v.numpy()

    def tensor(self, x):
        return self.tf.constant(x)


def train(q):
    spec = importlib.util.spec_from_file_location("user", q["path"])
    user = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(user)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(q["seed"])
    built = getattr(user, q["function"])(**(q["args"] or {}))
    micros, samples, rate = q["micros"], q["samples"], numpy.float32(q["options"]["lr"])
    first = numpy.array(q["batches"][0]["x"], "float32").reshape(micros, samples, -1)[0]
    model = Jax(built, q["seed"], first) if isinstance(built, list) else TensorFlow(built, sys.modules["tensorflow"].constant(first))
    count, losses = len(built) if isinstance(built, list) else len(built.layers), []
    for step, batch in enumerate(q["batches"]):
        x = numpy.array(batch["x"], "float32").reshape(micros, samples, -1)
        y = numpy.array(batch["y"], "int32").reshape(micros, samples)
        key, total, sums = mix((mix((mix(q["seed"]) + 0) & MASK) + step) & MASK), 0.0, None
        for m in range(micros):
            seeds = [mix((mix(key ^ stream(str(n))) + m * samples) & MASK) for n in range(count)]
            loss, gradients = model.pass_through(model.tensor(x[m]), model.tensor(y[m]), seeds, user.loss)
            gradients = [g * numpy.float32(1 / micros) for g in gradients]
            sums = gradients if sums is None else [a + b for a, b in zip(sums, gradients)]
            total += loss / micros
        model.step(sums, rate)
        losses.append(total)
    return {"losses": losses, "values": {name: numpy.asarray(v, "float64").ravel().tolist() for name, v in model.named()}}


json.dump([train(q) for q in json.load(sys.stdin)], sys.stdout)
