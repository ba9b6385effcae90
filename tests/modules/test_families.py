"""Every family of attention against a float64 loop over heads, queries and keys, forward and by its gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn, sigmoid

from attention_jax.modules.attention import Edit, MultiHeadAttention
from attention_jax.modules.families import BUILDERS, make_family
from attention_jax.modules.spec import AttentionSpec
from attention_jax.ops import families, statistics
from attention_jax.ops.masking import causal_mask
from attention_jax.ops.normalization import EPSILON
from attention_jax.ops.statistics import Summary

LENGTH, WIDTH, HEADS, KV_HEADS, SIZE, DEPTH = 6, 16, 4, 2, 4, 3
NAMES = (
    "plain",
    "talking",
    "differential",
    "gated",
    "gated:by=head",
    "forgetting",
    "contextual:positions=4",
    "selective",
)
BLOCKWISE = ("differential", "gated", "gated:by=head", "forgetting")
TEXTS = np.random.default_rng(1).normal(size=(2, LENGTH, WIDTH))


@functools.cache
def layer_of(family, backend="reference", dtype="float32"):
    spec = AttentionSpec(backend=backend, family=family)
    layer = MultiHeadAttention(WIDTH, HEADS, KV_HEADS, False, spec, jnp.dtype(dtype))
    return layer, drawn(functools.partial(layer.init, method=read), jnp.zeros((1, LENGTH, WIDTH)))


def read(layer, texts, **more):
    mask = causal_mask(LENGTH, LENGTH)
    return layer(texts, layer.project(texts), mask, depth=DEPTH, **more)


def heads_of(x, matrix, heads):
    return (x @ matrix).reshape(len(x), heads, -1).swapaxes(0, 1)


def softmax(row):
    shares = np.exp(row - row.max())
    return shares / shares.sum()


def weights_of(scores):
    """Causal softmax of each row, [heads, T, T]."""
    found = np.zeros_like(scores)
    for head, i in np.ndindex(scores.shape[:2]):
        found[head, i, : i + 1] = softmax(scores[head, i, : i + 1])
    return found


def scores_of(query, key):
    found = np.zeros((HEADS, LENGTH, LENGTH))
    for head, i, j in np.ndindex(found.shape):
        found[head, i, j] = query[head, i] @ key[head * KV_HEADS // HEADS, j] / np.sqrt(query.shape[-1])
    return found


def talking(query, key, x, p):
    scores, weights = scores_of(query, key), np.zeros((HEADS, LENGTH, LENGTH))
    mixed = sum(scores[h][None] * p["talk_scores"][h][:, None, None] for h in range(HEADS))
    own = weights_of(mixed)
    for head, other in np.ndindex(HEADS, HEADS):
        weights[head] += own[other] * p["talk_weights"][other, head]
    return weights


def start_of_lambda():
    return 0.8 - 0.6 * np.exp(-0.3 * DEPTH)


def differential(query, key, x, p):
    q1, k1, q2, k2 = p["lambdas"]
    factor = np.exp(q1 @ k1) - np.exp(q2 @ k2) + start_of_lambda()
    half = SIZE // 2
    first, second = scores_of(query[..., :half], key[..., :half]), scores_of(query[..., half:], key[..., half:])
    return weights_of(first) - factor * weights_of(second)


def forgetting(query, key, x, p):
    scores, kept = scores_of(query, key), sigmoid(x @ p["forget"] + p["forget_bias"])
    for head, i, j in np.ndindex(scores.shape):
        scores[head, i, j] += sum(np.log(kept[between, head]) for between in range(j + 1, i + 1))
    return weights_of(scores)


def contextual(query, key, x, p):
    scores, last = scores_of(query, key), len(p["position_table"]) - 1
    found = scores.copy()
    for head, i, j in np.ndindex(scores.shape):
        position = min(sum(sigmoid(scores[head, i, between]) for between in range(j, i + 1)), last)
        below = int(np.floor(position))
        rows = p["position_table"][below], p["position_table"][min(below + 1, last)]
        embedding = rows[0] + (position - below) * (rows[1] - rows[0])
        found[head, i, j] += query[head, i] @ embedding / np.sqrt(SIZE)
    return weights_of(found)


def selective(query, key, x, p):
    scores, taken = scores_of(query, key), np.zeros((LENGTH, LENGTH))
    for i, j in np.ndindex(taken.shape):
        taken[i, j] = sum(max(scores[0, before, j], 0) for before in range(i) if 0 < j < before)
    return weights_of(scores - taken[None])


def plain(query, key, x, p):
    return weights_of(scores_of(query, key))


ORACLES = {"talking": talking, "differential": differential, "forgetting": forgetting} | {
    "contextual": contextual, "selective": selective,
}  # fmt: skip


def oracle(family, p, x):
    """What the layer says of one text, and its heads' weights."""
    query, key, value = (heads_of(x, p[n], h) for n, h in (("query", HEADS), ("key", KV_HEADS), ("value", KV_HEADS)))
    weights = ORACLES.get(family.partition(":")[0], plain)(query, key, x, p)
    outputs = np.stack([weights[head] @ value[head * KV_HEADS // HEADS] for head in range(HEADS)])
    if family == "differential":
        outputs /= np.sqrt(np.mean(outputs**2, axis=-1, keepdims=True) + EPSILON)
        outputs *= p["head_gain"] * (1 - start_of_lambda())
    if family == "gated":
        outputs *= heads_of(sigmoid(x @ p["gate_by_feature"]), np.eye(WIDTH), HEADS)
    if family == "gated:by=head":
        outputs *= heads_of(sigmoid(x @ p["gate_by_head"]), np.eye(HEADS), HEADS)
    return outputs.swapaxes(0, 1).reshape(LENGTH, WIDTH) @ p["out"], weights


def oracle_of_texts(family, p, texts):
    return np.stack([oracle(family, p, text)[0] for text in texts])


@pytest.mark.parametrize("family", NAMES)
def test_a_family_is_its_paper_s_formula_forward_and_by_its_gradient(family):
    layer, variables = layer_of(family)
    exact = jax.tree.map(lambda array: np.asarray(array, np.float64), variables["params"])
    weigh = np.random.default_rng(2).normal(size=TEXTS.shape)

    def said(params, texts):
        out, heads = layer.apply({"params": params}, texts, method=read, with_heads=True)
        return jnp.sum(out * weigh), (out, heads)

    run = jax.jit(jax.grad(said, argnums=(0, 1), has_aux=True))
    gradients, (out, heads) = run(variables["params"], jnp.asarray(TEXTS, jnp.float32))
    np.testing.assert_allclose(out, oracle_of_texts(family, exact, TEXTS), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(heads.weights[1], oracle(family, exact, TEXTS[1])[1], rtol=2e-4, atol=2e-5)
    leaves, tree = jax.tree.flatten((exact, TEXTS))
    numbers, small = np.random.default_rng(3), 1e-5
    for index, gradient in enumerate(jax.tree.leaves(gradients)):  # along a random direction of each array
        along = numbers.normal(size=leaves[index].shape)
        ends = []
        for sign in (1, -1):
            moved = [leaf + sign * small * along if at == index else leaf for at, leaf in enumerate(leaves)]
            ends.append(np.sum(weigh * oracle_of_texts(family, *tree.unflatten(moved))))
        expected = (ends[0] - ends[1]) / (2 * small)
        np.testing.assert_allclose(np.sum(gradient * along), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("family", BLOCKWISE)
def test_families_that_make_no_maps_are_the_same_in_blocks(family):
    reference, variables = layer_of(family)
    chunked, _ = layer_of(family, "chunked:queries=4,keys=3")
    texts = jnp.asarray(TEXTS, jnp.float32)

    def learnt(layer):
        run = lambda params: jnp.sum(jnp.sin(layer.apply({"params": params}, texts, method=read)[0]))  # noqa: E731
        return jax.jit(jax.value_and_grad(run))(variables["params"])

    same = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5)
    jax.tree.map(same, learnt(chunked), learnt(reference))


@pytest.mark.parametrize("family", NAMES)
def test_statistics_are_those_of_the_weights_and_heads_are_gated_and_replaced(family, monkeypatch):
    monkeypatch.setattr(statistics, "WEIGHTS", 2 * HEADS * LENGTH * 4)  # blocks of four queries
    layer, variables = layer_of(family)
    texts, first = jnp.asarray(TEXTS, jnp.float32), jnp.arange(HEADS) == 1

    @jax.jit
    def everything(variables, texts):
        whole, heads = layer.apply(variables, texts, method=read, with_heads=True)
        _, told = layer.apply(variables, texts, method=read, summary=Summary())
        edits = Edit(replaced=first, weights=heads.weights), Edit(replaced=first, outputs=heads.outputs)
        same = [layer.apply(variables, texts, method=read, edit=edit)[0] for edit in edits]
        nobody = [
            layer.apply(variables, texts, method=read, edit=edit)[0]
            for edit in (Edit(gate=1.0 - first), Edit(replaced=first, weights=jnp.zeros_like(heads.weights)))
        ]
        without = {**variables["params"], "out": variables["params"]["out"].at[SIZE : 2 * SIZE].set(0)}
        return whole, heads, told, same, [*nobody, layer.apply({"params": without}, texts, method=read)[0]]

    whole, heads, told, same, (removed, *others) = everything(variables, texts)
    np.testing.assert_allclose(told.first, heads.weights[..., 0], rtol=1e-5, atol=1e-6)
    for again in same:
        np.testing.assert_allclose(again, whole, rtol=1e-4, atol=1e-5)
    for other in others:
        np.testing.assert_allclose(removed, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", NAMES)
def test_a_family_in_bfloat16_is_near_what_it_is_in_float32(family):
    layer, variables = layer_of(family, dtype="bfloat16")
    out = jax.jit(lambda: layer.apply(variables, jnp.asarray(TEXTS, jnp.bfloat16), method=read)[0])()
    exact = jax.tree.map(lambda array: np.asarray(array, np.float64), variables["params"])
    expected = oracle_of_texts(family, exact, TEXTS)
    assert out.dtype == jnp.bfloat16
    assert np.abs(np.asarray(out, np.float64) - expected).mean() < 0.03 * np.abs(expected).max()


def test_contextual_positions_in_bfloat16_are_scored_in_float32():
    query, table = (jax.random.normal(jax.random.key(key), (1, 3, 8), jnp.bfloat16) for key in (0, 1))
    found = families.contextual(jnp.zeros((1, 3, 3)), query, jnp.eye(3, dtype=bool)[None], table[0])
    exact = np.asarray(query, np.float64) @ np.asarray(table[0], np.float64).T / np.sqrt(8)
    np.testing.assert_allclose(found[0, 0, 0], (exact[0, 0, 0] + exact[0, 0, 1]) / 2, rtol=1e-6)


def test_heads_that_begin_to_talk_say_what_they_would_alone():
    layer, _ = layer_of("talking")
    start = layer.init(jax.random.key(0), jnp.asarray(TEXTS, jnp.float32), method=read)
    silent = {name: start["params"][name] for name in ("query", "key", "value", "out")}
    texts = jnp.asarray(TEXTS, jnp.float32)
    expected = layer_of("plain")[0].apply({"params": silent}, texts, method=read)[0]
    np.testing.assert_allclose(layer.apply(start, texts, method=read)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "kind", "message"),
    [
        ("whispering", "decoder", "family='whispering': choose one of plain, talking"),
        ("gated:by=layer", "decoder", "family='gated:by=layer': by='layer': choose one of feature, head"),
        ("contextual:positions=1", "decoder", "positions=1: needs a whole number, 2 or more"),
        ("talking:heads=2", "decoder", "family='talking:heads=2': has no option 'heads'"),
        ("forgetting", "encoder", "needs queries that come after their keys. Choose one of plain, talking, diff"),
        ("selective", "cross", "needs queries that come after their keys"),
    ],
)
def test_a_family_that_cannot_be_had_is_refused_by_name(family, kind, message):
    with pytest.raises(ValueError, match=message):
        make_family(family, "family", kind)


@pytest.mark.parametrize("backend", ["chunked", "flex", "flash"])
@pytest.mark.parametrize("family", sorted({*BUILDERS} - {"plain", "gated", "differential"}))
def test_what_needs_whole_maps_is_refused_by_backends_that_make_none(family, backend):
    spec = AttentionSpec(backend=backend, family=family)
    if (family, backend) == ("forgetting", "chunked"):
        spec.check()
        return
    with pytest.raises(ValueError, match=f"backend='{backend}': .*Choose backend='reference'"):
        spec.check()


@pytest.mark.parametrize("family", ["talking", "forgetting", "contextual", "selective"])
def test_weights_of_kernels_are_not_made_negative(family):
    with pytest.raises(ValueError, match=f"normalize='sum': needs weights of 0 or more, and family='{family}'"):
        AttentionSpec("kernel", "sum", family=family).check()
