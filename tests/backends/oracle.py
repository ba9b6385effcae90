"""Multi-head attention the slow, obvious way, in float64: a loop over texts and heads, a formula for every pair."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.dropout import multiplier

HALVINGS = 60  # of the interval that a threshold lies in


def pairs(query, key):
    """Both as [T, S, F]."""
    shape = (len(query), len(key), query.shape[-1])
    return jnp.broadcast_to(query[:, None, :], shape), jnp.broadcast_to(key[None, :, :], shape)


def norm(x):
    return jnp.sqrt(jnp.sum(x * x, axis=-1))


def epanechnikov(query, key, width):
    squared = jnp.sum(jnp.square((lambda q, k: q - k)(*pairs(query, key))), axis=-1)
    return 0.75 * jnp.maximum(1 - squared / width**2, 0)


# (query [T, F], key [S, F], parameters) → [T, S]
SCORES = {
    "dot": lambda q, k: jnp.sum((lambda a, b: a * b)(*pairs(q, k)), -1),
    "scaled_dot": lambda q, k: jnp.sum((lambda a, b: a * b)(*pairs(q, k)), -1) / np.sqrt(q.shape[-1]),
    "bilinear": lambda q, k, m: jnp.sum((lambda a, b: a * b)(*pairs(q @ m, k)), -1),
    "additive:hidden=3": lambda q, k, w_q, w_k, w_v: jnp.tanh(jnp.add(*pairs(q @ w_q, k @ w_k))) @ w_v,
    "concat": lambda q, k, w, w_v: jnp.tanh(jnp.concatenate(pairs(q, k), -1) @ w) @ w_v,
    "gaussian:width=2": lambda q, k: -jnp.sum(jnp.square(jnp.subtract(*pairs(q, k))), -1) / 8,
    "kernel:name=epanechnikov,width=9": lambda q, k: epanechnikov(q, k, 9),
    "cosine:temperature=0.3": lambda q, k: (
        jnp.sum((lambda a, b: a * b)(*pairs(q, k)), -1) / (norm(q)[:, None] * norm(k)[None, :] * 0.3)
    ),
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
    low, high = jax.lax.stop_gradient((z.max() - 1, z.max()))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_above = jnp.sum(jnp.maximum(z - middle, 0) ** power) > 1
        low, high = jnp.where(is_above, middle, low), jnp.where(is_above, high, middle)
    low = jax.lax.stop_gradient(low)
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


def attention(sizes, texts, params, own, record, mask, positions, dropout):
    """What a layer of attention says: [B, T, width].

    `sizes` is (score, normalizer, heads, heads of keys); `texts` [B, T, width]; `params` the layer's and `own` the
    encoding's; `mask` [B, T, T]; `positions` [B, T].
    """
    score, normalize, heads, kv_heads = sizes
    batch, length, width = texts.shape
    size, out = width // heads, []
    shape = (batch, kv_heads, heads // kv_heads, length, length)
    kept = jnp.ones(shape) if dropout is None else multiplier(dropout, shape).astype(jnp.float64)
    kept = kept.reshape(batch, heads, length, length)
    learned = [params[name] for name in ("matrix", "w", "w_q", "w_k", "w_v") if name in params]
    for row in range(batch):
        split = lambda name, count: (texts[row] @ params[name]).reshape(length, count, size).swapaxes(0, 1)  # noqa: B023, E731
        query, key, value = split("query", heads), split("key", kv_heads), split("value", kv_heads)
        here = positions[row][None]
        if record.rotate:
            query, key = (record.rotate(own, x[None], here[:, None])[0] for x in (query, key))
        bias = record.bias(own, query[None], here, here)[0] if record.bias else jnp.zeros((heads, length, length))
        weights = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = SCORES[score](query[head], key[group], *learned) + bias[head]
            more = (params["sink"][head],) if "sink" in params else ()
            normalised = jax.vmap(lambda a, m, more=more: NORMALIZERS[normalize](a, m, *more))(scores, mask[row])
            weights.append(normalised * kept[row, head])
        read = jnp.stack([weights[head] @ value[head // (heads // kv_heads)] for head in range(heads)])
        if record.mix:
            read += record.mix(own, jnp.stack(weights)[None], here, here)[0]
        out.append(read.swapaxes(0, 1).reshape(length, width) @ params["out"])
    return jnp.stack(out)
