"""Every way to compute attention against a float64 oracle: forward, gradients, and what is refused.

A cell is (score, normalizer, mask, encoding, dropout, dtype, backend, mode). What a backend refuses it refuses by name;
of the other cells as many are computed as let every two values meet.
"""

import contextlib
import functools
import itertools
import os
import sys
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")  # for backends that need several

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[level]) for level in range(3)]

import oracle
from support import drawn

from attention_jax.backends import make_backend, require
from attention_jax.modules.attention import MultiHeadAttention
from attention_jax.modules.positions import PositionEncoding, QueryKeyPositions
from attention_jax.modules.spec import AttentionSpec
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.encoding import Spec
from attention_jax.ops.masking import causal_mask, combine, prefix_mask, segment_mask, valid_lens_mask, window_mask
from attention_jax.ops.positions import make_encoding
from attention_jax.training.placement import MESH, REST, make_mesh

jax.config.update("jax_numpy_rank_promotion", "raise")

BATCH, LENGTH, WIDTH, HEADS, KV_HEADS = 2, 7, 8, 4, 2
ROOM = LENGTH + 1  # of a cache
MEMBERS = 2  # of a model that is vmapped
SEGMENTS, LENGTHS, PREFIX = map(jnp.array, (oracle.SEGMENTS, oracle.LENGTHS, oracle.PREFIXES))
PACKED = ((0, 4), (4, 7))  # where the texts of a packed row begin and end
PART = jnp.array([[n for n, ends in enumerate(PACKED) for _ in range(*ends)]])  # which of them a token is of
PLACE = jnp.array([[n - ends[0] for ends in PACKED for n in range(*ends)]])  # where it stands in that

# (queries, keys, cached) → the mask; `first` is the index of the first query
MASKS = {
    "none": lambda q, k, first: None,
    "causal": causal_mask,
    "lengths": lambda q, k, first: valid_lens_mask(LENGTHS, k),
    "window": lambda q, k, first: window_mask(q, k, 2, first),
    "prefix": lambda q, k, first: prefix_mask(q, k, PREFIX, first),
    "segments": lambda q, k, first: segment_mask(
        jax.lax.dynamic_slice_in_dim(jnp.pad(SEGMENTS, ((0, 0), (0, 1))), first, q, 1),
        jnp.pad(SEGMENTS, ((0, 0), (0, k - LENGTH))),
    ),
    "array": lambda q, k, first: ((first + jnp.arange(q))[:, None] + 2 * jnp.arange(k)[None]) % 3 > 0,
}
AXES = {
    "score": tuple(oracle.SCORES),
    "normalizer": tuple(oracle.NORMALIZERS),
    "mask": tuple(MASKS),
    "encoding": ("none", "rotary", "alibi", "t5", "shaw", "fire", "kerple_log", "kerple_power"),
    "dropout": (0.0, 0.4),
    "dtype": ("float32", "bfloat16"),
    "backend": (
        "reference",
        "chunked:queries=4,keys=3",
        "ring:queries=1,keys=2",
        "gathered:queries=2,keys=1",
        "flex:queries=4,keys=3",
    ),
    "mode": ("plain", "cached", "packed", "vmapped"),
}
FUSED = ("cudnn", "triton", "flash", "splash", "tokamax")  # that others ship
INTERPRETED = ("triton:interpret=True", "flash:interpret=True", "splash:interpret=True")  # where no device of theirs is
TOLERANCE = {"float32": 3e-4, "bfloat16": 0.1}  # of the largest number of an array


class Cell(NamedTuple):
    """One combination."""

    score: str
    normalizer: str
    mask: str
    encoding: str
    dropout: float
    dtype: str
    backend: str
    mode: str


PLAIN = Cell("scaled_dot", "softmax", "none", "none", 0.0, "float32", "reference", "plain")
ASKED = ("mask", "dropout", "backend", "mode")  # that a backend refuses or takes whatever else a cell has


def refusal(cell):
    """Why a backend or the seam itself refuses a cell, whatever its dtype; "" where it is taken."""
    try:
        asked = AttentionSpec(cell.score, cell.normalizer, cell.backend).attention(make_encoding(cell.encoding))
        require(cell.backend, asked._replace(mask=mask_of(cell), dropout=dropout_of(cell)))
    except ValueError as error:
        return str(error)
    if cell.mode == "cached" and not make_backend(cell.backend).reads_caches:
        return "it reads no caches"
    return ""


def mask_of(cell):
    """The mask of whole texts; in a packed row, of the segments too."""
    mask = MASKS[cell.mask](LENGTH, LENGTH, 0)
    return combine(mask, segment_mask(PART, PART)) if cell.mode == "packed" else mask


def dropout_of(cell):
    """What drops its weights, or None."""
    return Dropout(jax.random.key(9), cell.dropout) if cell.dropout else None


def is_sensible(cell):
    """Whether a cell means something: decoding has no dropout; in a packed row masks and scores are by segment.

    JAX's interpreter for TPUs knows no grid of `flash` that has one more axis for members.
    """
    if cell.mode == "vmapped" and name_of(cell.backend) == "flash":
        return False
    if cell.mode in ("cached", "packed") and cell.dropout:
        return False
    return cell.mode != "packed" or (cell.mask in ("none", "causal", "window") and "location" not in cell.score)


def covering(backends=AXES["backend"], seed=0):
    """Cells that are taken and sensible, among which every pair of values that can meet does, whatever the backend."""
    draw = np.random.default_rng(seed)
    every = [Cell(*values) for values in itertools.product(*(AXES | {"backend": backends}).values())]
    every = [every[index] for index in draw.permutation(len(every))]
    taken = functools.cache(lambda *named: not refusal(Cell(*named[:2], "none", named[2], 0.0, "", named[3], "plain")))
    fits = functools.cache(lambda *named: not refusal(PLAIN._replace(**dict(zip(ASKED, named, strict=True)))))
    open_pairs, chosen = set(), []
    cells = [c for c in every if is_sensible(c) and taken(c.score, c.normalizer, c.encoding, c.backend)]
    cells = [c for c in cells if fits(*(getattr(c, axis) for axis in ASKED))]
    for cell in cells:
        open_pairs |= pairs_of(cell)
    for least in (18, 12, 8, 4, 2, 1):  # the cells that settle most come first
        for cell in cells:
            if not open_pairs:
                return chosen
            found = pairs_of(cell) & open_pairs
            if len(found) >= least:
                chosen.append(cell)
                open_pairs -= found
    return chosen


SETTINGS = ("score", "normalizer", "encoding", "mask")
# What one cell each of a backend has instead of a plain call without dropout in float32.
CHANGES: tuple[dict, ...] = (
    {"mode": "packed"},
    {"mode": "cached"},
    {"mode": "vmapped", "dropout": 0.4},
    {"dtype": "bfloat16"},
)
OVER_DEVICES = ("ring", "gathered")  # whose texts lie over all devices that there are


@functools.cache
def few():
    """A few cells in which each backend meets every score, normalizer, encoding and mask that it takes, and `CHANGES`.

    It has the cells of those that take less, so that the oracle answers once for all, and more, of which each next one
    has the most that is not met yet. Backends over devices meet the settings together, and each the changes.
    """
    cells, chosen = [], []
    for backends in together():
        takes = plain_cells(backends[0])
        new = set().union(*map(settings_of, takes)).difference(*map(settings_of, cells))
        while new:
            cells.append(max(takes, key=lambda cell: len(settings_of(cell) & new)))
            new -= settings_of(cells[-1])
        for index, cell in enumerate(changed(cells, CHANGES)):
            own = backends if cell not in cells else [backends[index % len(backends)]]
            chosen += [cell._replace(backend=backend) for backend in own]
    return tuple(sorted(chosen))  # by score first: those of one answer are one after another


def together():
    """The backends, those that take least first, and those over devices as one."""
    by_kind = {}
    for backend in reversed(AXES["backend"]):
        name = name_of(backend)
        by_kind.setdefault("over devices" if name in OVER_DEVICES else name, []).append(backend)
    return by_kind.values()


def plain_cells(backend):
    """Every plain call that a backend takes, in a random order, with no backend's name."""
    names = [AXES[axis] for axis in SETTINGS]
    every = (
        Cell(score, normalizer, mask, encoding, 0.0, "float32", "", "plain")
        for score, normalizer, encoding, mask in itertools.product(*names)
    )
    taken = functools.cache(lambda *named: not refusal(Cell(*named[:2], "none", named[2], 0, "", backend, "plain")))
    cells = [cell for cell in every if taken(cell.score, cell.normalizer, cell.encoding)]
    return [cells[index] for index in np.random.default_rng(0).permutation(len(cells))]


def settings_of(cell):
    """The values of a cell that `few` has all of."""
    return {(axis, getattr(cell, axis)) for axis in SETTINGS}


def changed(cells, changes):
    """The cells, one of them with each of the changes."""
    cells, left = list(cells), list(range(len(cells)))
    for change in changes:
        index = next(index for index in left if is_sensible(cells[index]._replace(**change)))
        cells[index] = cells[index]._replace(**change)
        left.remove(index)
    return cells


def pairs_of(cell):
    """Every two values of a cell, with its backend."""
    named = [item for item in cell._asdict().items() if item[0] != "backend"]
    return {(cell.backend, *pair) for pair in itertools.combinations(named, 2)}


@functools.cache
def subject(cell, members=None):
    """A layer of attention, and its variables: of one, or of so many."""
    record = make_encoding(cell.encoding)
    sizes = Spec(WIDTH, HEADS, WIDTH // HEADS, 16, True)
    encoding = PositionEncoding(record, sizes, parent=None)
    spec = AttentionSpec(cell.score, cell.normalizer, cell.backend)
    layer = MultiHeadAttention(WIDTH, HEADS, KV_HEADS, False, spec, jnp.dtype(cell.dtype), encoding=encoding)
    texts, positions = inputs()[0], QueryKeyPositions(*[jnp.arange(LENGTH)[None]] * 2)
    init = functools.partial(layer.init, method=whole)
    if members is not None:
        init = jax.vmap(init, in_axes=None, axis_size=members)
    return layer, drawn(init, texts, positions, None), record


def inputs(members=None):
    """Texts, and what their outputs are weighed with."""
    shape = (BATCH, LENGTH, WIDTH) if members is None else (members, BATCH, LENGTH, WIDTH)
    return tuple(jax.random.normal(jax.random.key(seed), shape) for seed in (1, 2))


def whole(layer, texts, positions, mask, dropout=None):
    """Self-attention of whole texts."""
    return layer(texts, layer.project(texts, positions.queries), mask, dropout, positions)[0]


def step(layer, text, held, position, mask):
    """Self-attention of one token, whose key and value join those of the tokens before it."""
    positions = QueryKeyPositions(position[:, None], jnp.arange(ROOM)[None])
    held = layer.remember(text, positions.queries, held, position)
    return layer(text, held.history, mask, None, positions)[0], held


def computed(cell, variables, texts):
    """What the cell's backend says."""
    (layer, _, _), texts = subject(cell), texts.astype(cell.dtype)
    if cell.mode == "cached":
        empty = layer.init_cache(BATCH, ROOM)

        def next_token(held, t):
            mask = combine(causal_mask(1, ROOM, t), MASKS[cell.mask](1, ROOM, t))
            text = jax.lax.dynamic_slice_in_dim(texts, t, 1, 1)
            out, held = layer.apply(variables, text, held, jnp.full(BATCH, t), mask, method=step)
            return held, out[:, 0]

        return jnp.moveaxis(jax.lax.scan(next_token, empty, jnp.arange(LENGTH))[1], 0, 1)
    places = PLACE if cell.mode == "packed" else jnp.arange(LENGTH)[None]
    positions = QueryKeyPositions(places, places)
    return layer.apply(variables, texts, positions, mask_of(cell), dropout_of(cell), method=whole)


def expected(cell, variables, texts):
    """What the oracle says."""
    params = dict(variables["params"])
    own = params.pop("encoding", {})
    names = (cell.score, cell.normalizer, cell.encoding)

    def of(begin, end):
        mask = oracle.allowed(cell.mask, cell.mode == "cached", BATCH, end - begin)
        part, positions = texts[:, begin:end], range(end - begin)
        return oracle.attention(
            names, (HEADS, KV_HEADS), part, params, own, mask, positions, dropout_of(cell), cell.dtype
        )

    return jnp.concatenate([of(*ends) for ends in (PACKED if cell.mode == "packed" else ((0, LENGTH),))], axis=1)


def errors(cell):
    """How far a cell is from the oracle, forward and by every gradient, relative to the largest number of each.

    A single number is relative to the sum of what each text and head adds to it, whatever its sign: they may cancel.
    """
    run, given = functools.partial(valued, computed, cell), arguments(cell)
    mesh = make_mesh({**MESH, "data": 1, "context": REST})
    with jax.set_mesh(mesh) if name_of(cell.backend) in OVER_DEVICES else contextlib.nullcontext():
        found = jax.jit(jax.vmap(run) if cell.mode == "vmapped" else run)(*given)
    answer = right(cell._replace(backend="reference"))  # of one name: the oracle knows no backends
    found, wanted = (jax.tree_util.tree_leaves_with_path(tree) for tree in (found, answer))
    least = 1e-2 * max(np.abs(leaf).max(initial=0) for _, leaf in wanted)
    return {
        jax.tree_util.keystr(path): error(np.asarray(one, np.float64), other, least)
        for (path, one), (_, other) in zip(found, wanted, strict=True)
    }


def error(found, wanted, least):
    """How far what was found is from what is right, or from its sum over further axes."""
    parts = tuple(range(found.ndim, wanted.ndim))
    return np.abs(found - wanted.sum(parts)).max(initial=0) / max(np.abs(wanted).sum(parts).max(initial=0), least)


def valued(function, cell, variables, texts, weigh):
    """What a function gives for a cell, and its gradients."""
    out, pull = jax.vjp(functools.partial(function, cell), variables, texts)
    return out, *pull(weigh.astype(out.dtype))


def arguments(cell):
    """Variables, texts and weights; what the code rounds before the first product is rounded for the oracle too."""
    members = MEMBERS if cell.mode == "vmapped" else None
    rounded = lambda a: a.astype(cell.dtype).astype(jnp.float32)  # noqa: E731
    return jax.tree.map(rounded, (subject(cell, members)[1], *inputs(members)))


@functools.cache
def right(cell):
    """What the oracle gives for a cell, and its gradients, in float64."""
    given = arguments(cell)
    with exact():
        double = jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), by_head(given))
        if cell.mode != "vmapped":
            return jax.tree.map(np.asarray, valued(expected, cell, *double))
        of_members = [valued(expected, cell, *jax.tree.map(lambda a, m=m: a[m], double)) for m in range(MEMBERS)]
        return jax.tree.map(lambda *a: np.stack(a), *of_members)


def by_head(given):
    """The arguments, with a score's single number as one of each text and head."""
    variables, *others = given
    params = dict(variables["params"])
    if "log_width" in params:
        width = params["log_width"][..., None, None]
        params["log_width"] = jnp.broadcast_to(width, (*width.shape[:-2], BATCH, HEADS))
    return {**variables, "params": params}, *others


def exact():
    """Numbers of 64 bits."""
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def verdict(cell):
    """ "" where a cell is right; else what is wrong."""
    far = {name: float(error) for name, error in errors(cell).items() if not error < TOLERANCE[cell.dtype]}
    return ", ".join(f"{name} by {error:.2g}" for name, error in far.items())


def name_of(text):
    """A text without its options."""
    return text.partition(":")[0]
