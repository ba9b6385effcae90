"""Multi-head attention the slow, obvious way, in float64: a loop over texts and heads, a formula for every pair.

Scores, normalizers, masks and position encodings are formulas of this file. Of the code under test it uses one thing:
the hash that says which weights dropout drops, which tests/ops/test_dropout.py tests by its own properties.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.dropout import multiplier

HALVINGS = 60  # of the interval that a threshold lies in
LENGTHS, PREFIXES = (7, 4), (2, 5)  # of each text
SEGMENTS = ((1, 1, 1, 1, 2, 2, 2), (1, 1, 2, 2, 2, 2, 2))

# (text, index of the query, index of the key) → whether it may attend
MASKS = {
    "none": lambda text, i, j: True,
    "causal": lambda text, i, j: j <= i,
    "lengths": lambda text, i, j: j < LENGTHS[text],
    "window": lambda text, i, j: -2 <= j - i <= 2,
    "prefix": lambda text, i, j: j < PREFIXES[text] or j <= i,
    "segments": lambda text, i, j: SEGMENTS[text][i] == SEGMENTS[text][j],
    "array": lambda text, i, j: (i + 2 * j) % 3 != 0,
}


def allowed(name, is_causal, texts, length):
    """Who may attend to whom, [texts, queries, keys]; if `is_causal`, to nothing that comes after the query."""
    may = lambda text, i, j: MASKS[name](text, i, j) and (j <= i or not is_causal)  # noqa: E731
    every = range(length)
    return np.array([[[may(text, i, j) for j in every] for i in every] for text in range(texts)])


def pairs(query, key):
    """Both as [T, S, F]."""
    shape = (len(query), len(key), query.shape[-1])
    return jnp.broadcast_to(query[:, None, :], shape), jnp.broadcast_to(key[None, :, :], shape)


def norm(x):
    return jnp.sqrt(jnp.sum(x * x, axis=-1))


def epanechnikov(query, key, width):
    squared = jnp.sum(jnp.square((lambda q, k: q - k)(*pairs(query, key))), axis=-1)
    return 0.75 * jnp.maximum(1 - squared / width**2, 0)


# (query, key, parameters) → query, key, parameters: what a score projects first
PROJECTIONS = {
    "bilinear": lambda q, k, m: (q @ m, k),
    "additive:hidden=3": lambda q, k, w_q, w_k, w_v: (q @ w_q, k @ w_k, w_v),
}
# (query [T, F], key [S, F], parameters), after those projections → [T, S]
SCORES = {
    "dot": lambda q, k: jnp.sum((lambda a, b: a * b)(*pairs(q, k)), -1),
    "scaled_dot": lambda q, k: jnp.sum((lambda a, b: a * b)(*pairs(q, k)), -1) / np.sqrt(q.shape[-1]),
    "bilinear": lambda q, k: jnp.sum((lambda a, b: a * b)(*pairs(q, k)), -1),
    "additive:hidden=3": lambda q, k, w_v: jnp.tanh(jnp.add(*pairs(q, k))) @ w_v,
    "concat": lambda q, k, w, w_v: jnp.tanh(jnp.concatenate(pairs(q, k), -1) @ w) @ w_v,
    "gaussian:width=2": lambda q, k: -jnp.sum(jnp.square(jnp.subtract(*pairs(q, k))), -1) / 8,
    "kernel:name=epanechnikov,width=9": lambda q, k: epanechnikov(q, k, 9),
    "cosine:temperature=0.3": lambda q, k: (
        jnp.sum((lambda a, b: a * b)(*pairs(q, k)), -1) / (norm(q)[:, None] * norm(k)[None, :] * 0.3)
    ),
    "gaussian:width=2,learned=True": lambda q, k, s: (
        -jnp.sum(jnp.square(jnp.subtract(*pairs(q, k))), -1) / (2 * (2 * jnp.exp(s)) ** 2)
    ),
    "l2": lambda q, k: -jnp.sum(jnp.square(jnp.subtract(*pairs(q, k))), -1) / np.sqrt(q.shape[-1]),
    "laplacian:width=2": lambda q, k: -jnp.sum(jnp.abs(jnp.subtract(*pairs(q, k))), -1) / 2,
    "location:longest=8": lambda q, k, w: (q @ w)[:, : len(k)],
    "zero": lambda q, k: jnp.zeros((len(q), len(k))),
}


def shares(scores, allowed):
    highest = jnp.max(jnp.where(allowed, scores, -jnp.inf), initial=-1e30)
    return jnp.where(allowed, jnp.exp(jnp.where(allowed, scores - highest, 0)), 0), highest


def softmax(scores, allowed):
    found, _ = shares(scores, allowed)
    return found / jnp.maximum(found.sum(), 1e-300)


def sink(scores, allowed, s=0.0):
    found, highest = shares(jnp.append(scores, s), jnp.append(allowed, True))
    del highest
    return found[:-1] / found.sum()


def threshold(z, power):
    """τ with Σ max(z − τ, 0)^power = 1, halved out, then one step of Newton's that its gradient goes through."""
    held = jax.lax.stop_gradient(z)
    low, high = held.max() - 1, held.max()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_above = jnp.sum(jnp.maximum(held - middle, 0) ** power) > 1
        low, high = jnp.where(is_above, middle, low), jnp.where(is_above, high, middle)
    left = jnp.maximum(z - low, 0)
    slope = jax.lax.stop_gradient(jnp.sum(left > 0) if power == 1 else 2 * jnp.sum(left))
    return low + (jnp.sum(left**power) - 1) / slope


def sparse(power, scale):
    def weights(scores, allowed):
        z = jnp.where(allowed, scores * scale, -1e9)
        return jnp.where(allowed, jnp.maximum(z - threshold(z, power), 0) ** power, 0) * allowed.any()

    return weights


def top_k(scores, allowed, k=3):
    found = jnp.where(allowed, scores, -jnp.inf)
    return softmax(scores, allowed & (found >= jnp.sort(found)[-k]))


# (scores [S], allowed [S], parameters of the head) → weights [S]
NORMALIZERS = {
    "softmax": softmax,
    "sum": lambda a, m: jnp.where(m, a, 0) / jnp.maximum(jnp.where(m, a, 0).sum(), 1e-300),
    "sigmoid": lambda a, m: jnp.where(m, 1 / (1 + jnp.exp(-(a - jnp.log(jnp.maximum(m.sum(), 1))))), 0),
    "sink": sink,
    "learned_sink": sink,
    "sparsemax": sparse(1, 1.0),
    "entmax15": sparse(2, 0.5),
    "top_k:k=3": top_k,
    "softcap:cap=2": lambda a, m: softmax(2 * jnp.tanh(a / 2), m),
}


def distances(positions):
    """j − i of every query i and key j, [T, T]: more than 0 for a key that is ahead."""
    return np.array([[int(j) - int(i) for j in positions] for i in positions])


def rotary(own, x, positions):
    """Each pair of features as one complex number, turned by i · 10000^(−2p / F)."""
    size = x.shape[-1]
    angles = np.array([[i * 10000.0 ** (-2 * p / size) for p in range(size // 2)] for i in positions])
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[None]
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)


def alibi(own, query, positions):
    heads = len(query)  # a power of two
    return jnp.stack([-(2.0 ** (-8 * (head + 1) / heads)) * np.abs(distances(positions)) for head in range(heads)])


def t5(own, query, positions):
    """The table's row of the distance back to the key, its column of the head; distances here have a row each."""
    rows = np.maximum(-distances(positions), 0)
    assert rows.max() < 16
    return jnp.stack([own["causal"][rows, head] for head in range(len(query))])


def shaw_rows(positions, clip=16):
    return np.clip(distances(positions), -clip, clip) + clip


def shaw(own, query, positions):
    keys = own["keys"][shaw_rows(positions)]  # [T, T, F]
    return jnp.stack([jnp.sum(of_head[:, None, :] * keys, -1) / math.sqrt(query.shape[-1]) for of_head in query])


def shaw_values(own, weights, positions):
    values = own["values"][shaw_rows(positions)]
    return jnp.stack([jnp.sum(of_head[:, :, None] * values, 1) for of_head in weights])


def fire(own, query, positions):
    """A network of ψ(i − j) / ψ(max(L, i)), ψ(x) = ln(|c x| + 1); keys ahead count as at the query."""
    psi = lambda x: jnp.log(jnp.abs(own["c"] * x) + 1)  # noqa: E731
    scale = jnp.maximum(jnp.abs(own["threshold"] * 16.0), np.asarray(positions, float))[:, None]
    ratio = psi(np.maximum(-distances(positions), 0).astype(float)) / psi(scale)
    features = jnp.maximum(ratio[..., None] * own["hidden"][None, None] + own["hidden_bias"][None, None], 0)
    return jnp.stack([features @ own["out"][:, head] for head in range(len(query))])


def kerple(form):
    def bias(own, query, positions):
        distance, found = np.abs(distances(positions)).astype(float), []
        for r1, r2 in zip(*(least_001(own[name]) for name in ("r1", "r2")), strict=True):
            power = jnp.where(distance == 0, 0, np.maximum(distance, 1) ** jnp.minimum(r2, 2))
            found.append(-r1 * (jnp.log(1 + r2 * distance) if form == "log" else power))
        return jnp.stack(found)

    return bias


def least_001(x):
    """A parameter that fell below 0.01 counts as 0.01, with the gradient of itself."""
    return x + jax.lax.stop_gradient(jnp.maximum(x, 0.01) - x)


TURNS = {"rotary": rotary}  # (parameters, queries or keys [N, T, F], positions [T]) → [N, T, F]
# (parameters, query [N, T, F], positions [T]) → [N, T, T], added to the scores
BIASES = {
    "alibi": alibi,
    "t5": t5,
    "shaw": shaw,
    "fire": fire,
    "kerple_log": kerple("log"),
    "kerple_power": kerple("power"),
}
MIXES = {"shaw": shaw_values}  # (parameters, weights [N, T, T], positions [T]) → [N, T, F], added to what is read
ENCODINGS = {"none", *TURNS, *BIASES}


def kept_as(x, dtype):
    """What is kept of `x` in an array of `dtype`, with the gradient of `x`."""
    return x + jax.lax.stop_gradient(x.astype(dtype).astype(x.dtype) - x)


def attention(names, heads, texts, params, own, mask, positions, dropout, dtype):
    """What a layer of attention says: [B, T, width].

    `names` is (score, normalizer, encoding); `heads` (of queries, of keys); `texts` [B, T, width]; `params` the layer's
    (of a single number, each text's and head's, [B, N]) and `own` the encoding's; `mask` [B, T, T]; `positions` [T].
    Queries, keys, values and their projections are kept in `dtype`; all else is exact.
    """
    (score, normalize, encoding), (heads, kv_heads) = names, heads
    batch, length, width = texts.shape
    size, out = width // heads, []
    shape = (batch, kv_heads, heads // kv_heads, length, length)
    kept = jnp.ones(shape) if dropout is None else multiplier(dropout, shape).astype(jnp.float64)
    kept = kept.reshape(batch, heads, length, length)
    learned = [params[name] for name in ("matrix", "w", "w_q", "w_k", "w_v") if name in params]
    for row in range(batch):
        project = lambda name: kept_as(texts[row] @ params[name], dtype)  # noqa: B023, E731
        split = lambda name, count: project(name).reshape(length, count, size).swapaxes(0, 1)  # noqa: B023, E731
        query, key, value = split("query", heads), split("key", kv_heads), split("value", kv_heads)
        if encoding in TURNS:
            query, key = (kept_as(TURNS[encoding](own, x, positions), dtype) for x in (query, key))
        bias = BIASES[encoding](own, query, positions) if encoding in BIASES else jnp.zeros((heads, length, length))
        weights = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            given = query[head], key[group], *learned
            if "log_width" in params:
                given = *given, params["log_width"][row, head]
            if score in PROJECTIONS:
                given = (kept_as(x, dtype) for x in PROJECTIONS[score](*given))
            scores = SCORES[score](*given) + bias[head]
            more = (params["sink"][head],) if "sink" in params else ()
            normalised = jax.vmap(lambda a, m, more=more: NORMALIZERS[normalize](a, m, *more))(scores, mask[row])
            weights.append(normalised * kept[row, head])
        read = jnp.stack([weights[head] @ value[head // (heads // kv_heads)] for head in range(heads)])
        if encoding in MIXES:
            read += MIXES[encoding](own, jnp.stack(weights), positions)
        out.append(read.swapaxes(0, 1).reshape(length, width) @ params["out"])
    return jnp.stack(out)
