"""What is written with a cache is what the whole text, read again for every token, would give."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn

from attention_jax.data.tokenizers import BOS, EOS, PAD, UNK
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import Edit
from attention_jax.tasks.language_model.generating import LEAST_ROOM, Drawing, Generator, Request
from attention_jax.tasks.language_model.model import draw_positions, init

SIZES = {
    "vocabulary": 11, "layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "qk_norm": False, "feed_forward": 16,
    "activation": "gelu", "gated": False, "norm": "layer", "norm_first": True, "max_length": 100, "is_tied": True,
    "mixer": "attention", "reach": 2, "dropout_sites": (),
}  # fmt: skip
GREEDY = Drawing(0.0, 0, 1.0)
WARM = Drawing(1.0, 0, 1.0)
PROMPT = [4, 9, 7, 5, 8]
STREAMING = "streaming:sinks=2,window=4"


@functools.cache
def made(positions, **more):
    """A model whose output depends on all that it reads, and its programs."""
    model = LanguageModel.of(**SIZES | {"positions": positions} | more)
    variables = jax.tree.map(lambda array: jnp.asarray(2 * np.asarray(array)), drawn(functools.partial(init, model)))
    return model, variables, Generator(model)


def written(positions, request, samples=1, seed=0, prompt=PROMPT, **more):
    _, variables, generator = made(positions, **more)
    keys = jax.random.split(jax.random.key(seed), 8)[:samples]
    return np.concatenate(list(generator.blocks(variables, prompt, keys, request)), axis=1)


def read_again(positions, count, context=0, prompt=PROMPT, **more):
    """The likeliest token after all that was written, or after what the context keeps, again and again."""
    model, variables, _ = made(positions, **more)
    length = min(len(prompt) + count, context or len(prompt) + count)
    drawn = draw_positions(model, jnp.zeros((1, length), jnp.int32), keys=jax.random.key(0)[None])
    whole = jnp.arange(length)[None] if drawn is None else drawn
    apply = jax.jit(lambda tokens: model.apply(variables, tokens, whole))
    text, kept = list(prompt), list(prompt)
    for _ in range(count):
        if context and len(kept) > context:
            kept = kept[-(context // 2) :]
        padded = np.pad(np.array([kept]), ((0, 0), (0, length - len(kept))))
        logits = np.array(apply(padded)[0, len(kept) - 1])
        logits[[PAD, BOS, UNK, EOS]] = -np.inf
        text.append(int(logits.argmax()))
        kept.append(text[-1])
    return text[len(prompt) :]


@pytest.mark.parametrize("positions", ["rotary", "alibi", "learned", "randomized_sinusoidal:longest=200"])
def test_a_cache_that_grows_writes_what_the_whole_text_read_again_would(positions):
    count = LEAST_ROOM + 20
    found = written(positions, Request(count, False, 0, GREEDY))
    assert found.tolist() == [read_again(positions, count)]


@pytest.mark.parametrize("context", [1, 2, 7, 12])
def test_where_the_context_is_full_its_later_half_is_read_again(context):
    found = written("rotary", Request(30, False, context, GREEDY))
    if context >= len(PROMPT):
        assert found.tolist() == [read_again("rotary", 30, context)]
    assert found.shape == (1, 30)


def test_a_text_is_drawn_alike_however_many_are_and_whatever_blocks_it_comes_in():
    alone = written("rotary", Request(21, False, 0, WARM))
    three = written("rotary", Request(40, False, 0, WARM), samples=3)
    np.testing.assert_array_equal(alone[0], three[0, :21])
    assert len({tuple(row) for row in three}) == 3
    assert not np.array_equal(written("rotary", Request(21, False, 0, WARM), seed=1), alone)
    assert not np.isin(three, [PAD, BOS, UNK, EOS]).any()


def test_what_is_written_with_a_closed_gate_is_what_a_model_writes_that_does_not_read_the_head():
    _, variables, generator = made("rotary")
    keys, request = jax.random.split(jax.random.key(0), 1), Request(12, False, 0, WARM)
    out = variables["params"]["layer_0"]["self_attention"]["out"]
    expected, written_by = [], lambda held, request: np.concatenate([*generator.blocks(held, PROMPT, keys, request)], 1)
    for head in range(2):
        blind = jax.tree.map(lambda a: a, variables)
        blind["params"]["layer_0"]["self_attention"]["out"] = out.at[4 * head : 4 * head + 4].set(0)
        expected.append(written_by(blind, request).tolist())
    before = generator.compiled()
    gates = [{"decoder": Edit(jnp.ones((1, 2)).at[0, head].set(0))} for head in range(2)]
    assert [written_by(variables, request._replace(edits=gate)).tolist() for gate in gates] == expected
    assert generator.compiled() == before + 2  # one to read and one to write, for both heads
    opened = request._replace(edits={"decoder": Edit(jnp.ones((1, 2)))})
    whole = written_by(variables, request).tolist()
    assert written_by(variables, opened).tolist() == whole
    assert any(whole != one for one in expected)
    with pytest.raises(ValueError, match="word by word a head can have a gate alone"):
        written_by(variables, request._replace(edits={"decoder": Edit(replaced=jnp.ones((1, 2), bool), outputs=out)}))


def test_a_text_ends_where_documents_do_and_then_there_is_padding():
    rows = written("rotary", Request(200, True, 16, Drawing(5.0, 0, 1.0)), samples=4)
    ends = [np.flatnonzero(row == EOS) for row in rows]
    assert all(len(end) == 1 for end in ends)
    for row, (end,) in zip(rows, ends, strict=True):
        assert not row[end + 1 :].any()
        assert row[:end].all()
    assert max(end for (end,) in ends) < rows.shape[1] < 200


def test_a_table_refuses_what_has_no_room_before_anything_is_written():
    with pytest.raises(
        UserError, match=r"config.generate.context=0: .*'learned': has positions for 100 tokens, not for 105"
    ):
        written("learned", Request(100, False, 0, GREEDY))
    assert written("learned", Request(130, False, 50, GREEDY)).shape == (1, 130)


def test_a_score_with_room_for_few_keys_writes_within_it_and_refuses_more():
    model = LanguageModel.of(**SIZES | {"positions": "none", "score": "location:longest=9"})
    variables, keys = drawn(functools.partial(init, model)), jax.random.split(jax.random.key(0), 1)
    write = lambda context: Generator(model).blocks(variables, PROMPT, keys, Request(20, False, context, GREEDY))  # noqa: E731
    with pytest.raises(UserError, match=r"config.generate.context=0: the model's score='location:longest=9': has room "
                                         r"for 9 tokens, not for 25. Set it to as many"):  # fmt: skip
        next(write(0))
    assert np.concatenate(list(write(9)), axis=1).shape == (1, 20)


HOLDING = [*({"mixer": name} for name in ("retention", "delta", "convolution", "window")), {"pattern": STREAMING}]


@pytest.mark.parametrize("more", HOLDING, ids=lambda more: next(iter(more.values())))
def test_what_holds_a_state_writes_what_the_whole_text_read_again_would(more):
    assert written("none", Request(20, False, 0, GREEDY), **more).tolist() == [read_again("none", 20, **more)]
    one = written("none", Request(3, False, 0, GREEDY), prompt=PROMPT[:1], **more)  # nothing is read before it
    assert one.tolist() == [read_again("none", 3, prompt=PROMPT[:1], **more)]
