"""Trees of the stand-in for JAX: tuples, lists, dictionaries, None and Partial."""

import functools


class Partial(functools.partial):
    """A function with arguments, which are its leaves."""


class DictKey:
    def __init__(self, key):
        self.key = key


class SequenceKey:
    def __init__(self, idx):
        self.idx = idx


class PyTreeDef:
    def __init__(self, kind, children, data=None):
        self.kind, self.children, self.data = kind, children, data

    def __repr__(self):
        if self.kind is None:
            return "*"
        return f"{self.kind.__name__}({self.data if self.kind is dict else ''}{self.children})"


def _parts(tree):
    if isinstance(tree, dict):
        return sorted(tree), [DictKey(k) for k in sorted(tree)], [tree[k] for k in sorted(tree)]
    if isinstance(tree, (tuple, list)):
        return None, [SequenceKey(i) for i in range(len(tree))], list(tree)
    if isinstance(tree, Partial):
        return tree.func, [SequenceKey(i) for i in range(len(tree.args))], list(tree.args)
    if tree is None:
        return None, [], []
    return None


def tree_flatten_with_path(tree):
    parts = _parts(tree)
    if parts is None:
        return [((), tree)], PyTreeDef(None, [])
    data, keys, values = parts
    leaves, children = [], []
    for key, value in zip(keys, values):
        of, child = tree_flatten_with_path(value)
        leaves += [((key,) + path, leaf) for path, leaf in of]
        children.append(child)
    return leaves, PyTreeDef(type(tree), children, data)


def tree_flatten(tree):
    leaves, shape = tree_flatten_with_path(tree)
    return [leaf for _, leaf in leaves], shape


def tree_leaves(tree):
    return tree_flatten(tree)[0]


def tree_unflatten(treedef, leaves):
    leaves = iter(leaves)
    tree = _build(treedef, leaves)
    if next(leaves, leaves) is not leaves:
        raise ValueError("Too many leaves for PyTreeDef")
    return tree


def _build(shape, leaves):
    if shape.kind is None:
        return next(leaves)
    values = [_build(child, leaves) for child in shape.children]
    if shape.kind is dict:
        return dict(zip(shape.data, values))
    if shape.kind is type(None):
        return None
    if shape.kind is Partial:
        return Partial(shape.data, *values)
    return shape.kind(*values) if hasattr(shape.kind, "_fields") else shape.kind(values)


def tree_map(f, tree, *rest):
    leaves, shape = tree_flatten(tree)
    others = [tree_leaves(r) for r in rest]
    return tree_unflatten(shape, [f(*each) for each in zip(leaves, *others)])
