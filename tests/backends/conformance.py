"""Every way to compute attention against a float64 oracle: forward, gradients, and what is refused.

    python tests/backends/conformance.py     # the matrix; make conformance

A cell is (score, normalizer, mask, encoding, dropout, dtype, backend, mode). What a backend refuses it refuses by name;
of the other cells as many are computed as let every two values meet.
"""

import concurrent.futures
import functools
import itertools
import multiprocessing
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import oracle

from attention_jax.modules.attention import AttentionSpec, KeyValue, MultiHeadAttention
from attention_jax.modules.positions import PositionEncoding, QueryKeyPositions
from attention_jax.modules.transformer import into_cache
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.encoding import Spec
from attention_jax.ops.masking import (
    causal_mask,
    combine,
    materialize,
    prefix_mask,
    segment_mask,
    valid_lens_mask,
    window_mask,
)
from attention_jax.ops.positions import make_encoding

jax.config.update("jax_numpy_rank_promotion", "raise")

BATCH, LENGTH, WIDTH, HEADS, KV_HEADS = 2, 7, 8, 4, 2
ROOM = LENGTH + 1  # of a cache
SEGMENTS = jnp.array([[1, 1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 2, 2, 2]])
LENGTHS, PREFIX = jnp.array([LENGTH, 4]), jnp.array([2, 5])
PACKED = ((0, 4), (4, 7))  # where the texts of a packed row begin and end

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
    "backend": ("reference", "chunked:queries=4,keys=3"),
    "mode": ("plain", "cached", "packed", "vmapped"),
}
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


def refusal(cell):
    """Why a backend or the seam itself refuses a cell; "" where it is taken."""
    try:
        AttentionSpec(cell.score, cell.normalizer, cell.backend).check(make_encoding(cell.encoding))
    except ValueError as error:
        return str(error)
    return ""


def is_sensible(cell):
    """Whether a cell means something: decoding has no dropout; in a packed row masks and scores are by segment."""
    if cell.mode in ("cached", "packed") and cell.dropout:
        return False
    if cell.mode == "packed" and (cell.mask not in ("none", "causal", "window") or "location" in cell.score):
        return False
    return not (cell.normalizer.startswith("top_k") and cell.dtype == "bfloat16")  # rounding changes the choice


def covering(seed=0):
    """Cells that are taken and sensible, among which every pair of values that can meet does, whatever the backend."""
    draw = np.random.default_rng(seed)
    every = [Cell(*values) for values in itertools.product(*AXES.values())]
    every = [every[index] for index in draw.permutation(len(every))]
    taken = functools.cache(lambda *named: not refusal(Cell(*named[:2], "none", named[2], 0.0, "", named[3], "plain")))
    open_pairs, chosen = set(), []
    cells = [c for c in every if is_sensible(c) and taken(c.score, c.normalizer, c.encoding, c.backend)]
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

    def init(key):
        made = layer.init(key, texts, positions, None, method=whole)
        noise = iter(jax.random.split(key, 30))
        return jax.tree.map(lambda a: a + 0.2 * jax.random.normal(next(noise), a.shape), made)

    key = jax.random.key(3)
    return layer, init(key) if members is None else jax.vmap(init)(jax.random.split(key, members)), record


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
    held = into_cache(held, position)(layer.project(text, positions.queries))
    return layer(text, held, mask, None, positions)[0], held


def computed(cell, variables, texts):
    """What the cell's backend says."""
    (layer, _, _), texts = subject(cell), texts.astype(cell.dtype)
    dropout = Dropout(jax.random.key(9), cell.dropout) if cell.dropout else None
    everywhere = jnp.arange(LENGTH)[None]
    if cell.mode == "cached":
        empty = KeyValue(*[jnp.zeros((BATCH, KV_HEADS, ROOM, WIDTH // HEADS), cell.dtype)] * 2)

        def next_token(held, t):
            mask = combine(causal_mask(1, ROOM, t), MASKS[cell.mask](1, ROOM, t))
            text = jax.lax.dynamic_slice_in_dim(texts, t, 1, 1)
            out, held = layer.apply(variables, text, held, jnp.full(BATCH, t), mask, method=step)
            return held, out[:, 0]

        return jnp.moveaxis(jax.lax.scan(next_token, empty, jnp.arange(LENGTH))[1], 0, 1)
    mask = MASKS[cell.mask](LENGTH, LENGTH, 0)
    if cell.mode == "packed":
        segments = jnp.concatenate([jnp.full(end - begin, n) for n, (begin, end) in enumerate(PACKED)])[None]
        everywhere = jnp.concatenate([jnp.arange(end - begin) for begin, end in PACKED])[None]
        mask = combine(mask, segment_mask(segments, segments))
    return layer.apply(variables, texts, QueryKeyPositions(everywhere, everywhere), mask, dropout, method=whole)


def expected(cell, variables, texts):
    """What the oracle says."""
    record = make_encoding(cell.encoding)
    params = dict(variables["params"])
    own = params.pop("encoding", {})
    sizes = (cell.score, cell.normalizer, HEADS, KV_HEADS)
    dropout = Dropout(jax.random.key(9), cell.dropout) if cell.dropout else None

    def of(begin, end, mask, batch=slice(None)):
        part = texts[batch, begin:end]
        positions = np.broadcast_to(np.arange(end - begin), (len(part), end - begin))
        return oracle.attention(sizes, part, params, own, record, mask, positions, dropout)

    if cell.mode == "packed":
        return jnp.concatenate([of(begin, end, allowed(cell, end - begin)) for begin, end in PACKED], axis=1)
    return of(0, LENGTH, allowed(cell, LENGTH))


def allowed(cell, length):
    """Who may attend to whom, [B, T, T], by the mask's definition and, with a cache, to what is there already."""
    mask = MASKS[cell.mask](length, length, 0)
    found = np.ones((length, length), bool) if mask is None else np.asarray(materialize(mask))
    if cell.mode == "cached":
        found = found & np.tri(length, dtype=bool)
    return np.broadcast_to(found, (BATCH, length, length))


def errors(cell):
    """How far a cell is from the oracle, forward and by every gradient, relative to the largest number of each."""
    members = 2 if cell.mode == "vmapped" else None
    _, variables, _ = subject(cell, members)
    variables, texts, weigh = jax.tree.map(  # what is rounded before the first product is rounded for both
        lambda a: a.astype(cell.dtype).astype(jnp.float32), (variables, *inputs(members))
    )

    def valued(function, variables, texts, weigh):
        out, pull = jax.vjp(functools.partial(function, cell), variables, texts)
        return out, *pull(weigh.astype(out.dtype))

    run = functools.partial(valued, computed)
    found = (jax.jit(jax.vmap(run)) if members else jax.jit(run))(variables, texts, weigh)
    with exact():
        double = lambda tree: jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), tree)  # noqa: E731
        arguments = [double(tree) for tree in (variables, texts, weigh)]
        if members:
            rows = [jax.tree.map(lambda a, m=m: a[m], arguments) for m in range(members)]
            wanted = jax.tree.map(lambda *a: np.stack(a), *[valued(expected, *row) for row in rows])
        else:
            wanted = valued(expected, *arguments)
        wanted = jax.tree.map(lambda a: np.asarray(a, np.float64), wanted)
    found, wanted = (jax.tree_util.tree_leaves_with_path(tree) for tree in (found, wanted))
    scale = max(np.abs(leaf).max(initial=0) for _, leaf in wanted)
    return {
        jax.tree_util.keystr(path): np.abs(np.asarray(one, np.float64) - other).max(initial=0)
        / max(np.abs(other).max(initial=0), 1e-2 * scale)
        for (path, one), (_, other) in zip(found, wanted, strict=True)
    }


def exact():
    """Numbers of 64 bits."""
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def verdict(cell):
    """ "" where a cell is right; else what is wrong."""
    found = errors(cell)
    if cell.dtype == "bfloat16" and cell.normalizer == "sparsemax":
        found = {"[0]": found["[0]"]}  # rounding changes the support, at whose edge the gradient jumps
    far = {name: float(error) for name, error in found.items() if not error < TOLERANCE[cell.dtype]}
    return ", ".join(f"{name} by {error:.2g}" for name, error in far.items())


def acceptance():
    """What each backend takes, a table of scores by normalizers and a line an encoding."""
    lines = []
    for backend in AXES["backend"]:
        lines += [f"\n`{backend.partition(':')[0]}`\n", "| | " + " | ".join(map(_name, AXES["normalizer"])) + " |"]
        lines += ["|---" * (1 + len(AXES["normalizer"])) + "|"]
        for score in AXES["score"]:
            cells = [Cell(score, n, "none", "none", 0.0, "float32", backend, "plain") for n in AXES["normalizer"]]
            lines.append(f"| {_name(score)} | " + " | ".join("–" if refusal(c) else "✓" for c in cells) + " |")
    return "\n".join(lines)


def _name(text):
    return text.partition(":")[0]


def counted(cells, wrong):
    """How many cells of every value were computed, by backend, and how many of them are wrong."""
    lines = ["| | " + " | ".join(map(_name, AXES["backend"])) + " |", "|---" * (1 + len(AXES["backend"])) + "|"]
    for axis in ("score", "normalizer", "mask", "encoding", "dropout", "dtype", "mode"):
        for value in AXES[axis]:
            row = []
            for backend in AXES["backend"]:
                here = [cell for cell in cells if getattr(cell, axis) == value and cell.backend == backend]
                bad = sum(cell in wrong for cell in here)
                row.append(
                    f"{len(here)} right" if here and not bad else f"**{bad} wrong of {len(here)}**" if here else "–"
                )
            shown = value if isinstance(value, str) else ("on" if value else "off")
            lines.append(f"| {axis} {_name(shown)} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main():
    """Compute every cell, in as many processes as there are processors, and print the matrix."""
    from tqdm import tqdm

    cells, wrong = covering(), {}
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        found = tqdm(pool.map(verdict, cells, chunksize=4), total=len(cells), desc="conformance", unit="cell")
        for cell, problem in zip(cells, found, strict=True):
            if problem:
                wrong[cell] = problem
                tqdm.write(f"wrong: {cell}: {problem}", file=sys.stderr)
    print("What each backend takes (✓) and refuses (–)\n" + acceptance())
    print(f"\nCells against the float64 oracle, forward and gradients: {len(cells)} computed, {len(wrong)} wrong\n")
    print(counted(cells, wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
