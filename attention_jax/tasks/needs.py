"""What a model needs: FLOPs, whatever way they are computed, which MFU counts, and bytes of its cache.

They are those of the matrix products of a forward and backward pass by the reference backend, without
rematerialization, less the products of self-attention whose weight is 0, by causality, a pattern or a window (Chowdhery
et al. 2022, app. B, which does not subtract them; Dao 2024, §4.1, which does). Mixers with a state are counted token by
token: writing to the state, and reading it, not the pairs of a block.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention_jax import backends
from attention_jax.models.in_context import InContextRegressor
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.transformer import Memory, Transformer
from attention_jax.modules.families import PLAIN
from attention_jax.modules.linear import RULES
from attention_jax.modules.mixers import is_window
from attention_jax.modules.transformer import LayerSpec
from attention_jax.ops import naming
from attention_jax.ops.masking import as_rule, causal_mask, combine, window_mask
from attention_jax.ops.patterns import ALL, narrowed
from attention_jax.training.cost import flops

LAYERED = (LanguageModel, InContextRegressor, Transformer)  # models whose layers are of a LayerSpec


def counted(model: Any) -> Any:
    """The same model in the form whose products are counted."""
    if isinstance(model, Transformer):
        model = model.clone(encoder_mixer=_by_token(model.encoder_mixer))
    if isinstance(model, LAYERED):
        mixer = _by_token(model.layer.mixer)
        return model.clone(layer=model.layer._replace(backend="reference", remat="none", mixer=mixer))
    return model.clone(backend="reference")


def held_bytes(model: LanguageModel | Transformer) -> tuple[int, int]:
    """Bytes that the layers hold of a text that is read token by token: of each token, and of a text of any length."""
    one, two = (_bytes(jax.eval_shape(functools.partial(_empty_cache, model, room))) for room in (1, 2))
    return two - one, 2 * one - two


def in_sight(model: Any) -> Any:
    """The same model with all its products in its program: the reference's stand for those inside of fused kernels."""
    if not backends.make_backend(model.backend).is_fused:
        return model
    if isinstance(model, LAYERED):
        return model.clone(layer=model.layer._replace(backend="reference"))
    return model.clone(backend="reference")


def unseen_flops(model: Any, rows: int, length: int, own_positions: bool = False) -> float:
    """The FLOPs of a step's products for pairs of a query and a key of its own text that it may not see.

    Of a text's T² pairs a causal layer sees T(T + 1)/2; with a pattern or a window any layer sees fewer. Texts have
    positions of their own, or share 0, 1, ….
    """
    found = 0.0
    for layers in _attending(model):
        unseen = _unseen(layers.spec.pattern, layers.reach, length, layers.is_causal)
        if unseen:
            found += layers.number * unseen * _of_a_pair(_alone(layers, model), rows, rows if own_positions else 1)
    return found


@functools.cache
def _of_a_pair(model: LanguageModel, rows: int, rows_of_positions: int) -> float:
    """The FLOPs, forward and backward, of a pair of tokens: c of the a + b T + c T² that a model of one layer takes."""

    def step(length: int) -> float:
        tokens = jnp.zeros((rows, length), jnp.int32)
        positions = jnp.zeros((rows_of_positions, length), jnp.int32)
        variables = jax.eval_shape(model.init, jax.random.key(0), tokens, positions)
        forward: Any = model.apply
        return flops(jax.grad(lambda variables: jnp.sum(forward(variables, tokens, positions))), variables)

    return (step(1) - 2 * step(2) + step(3)) / 2


@functools.cache
def _unseen(pattern: str, reach: int | None, length: int, is_causal: bool) -> int:
    """How many pairs of a query and a key a layer with this pattern, and this reach, leaves out."""
    if pattern == ALL and (reach is None or reach >= length):
        return length * (length - 1) // 2 if is_causal else 0
    before = causal_mask(length, length) if is_causal else None
    near = None if reach is None else window_mask(length, length, reach)
    (mask,), places = narrowed([combine(before, near)], [pattern], length), jnp.arange(length)
    mask = as_rule(mask, length)
    rows = (places[first : first + 256] for first in range(0, length, 256))
    return length**2 - sum(int(jnp.sum(mask.block(some, places))) for some in rows)


class _Layers(NamedTuple):
    """The layers of a model that have one kind of self-attention."""

    spec: LayerSpec
    positions: str
    number: int
    is_causal: bool = True

    @property
    def reach(self) -> int | None:
        """How far from its query a key may be; None: any."""
        return self.spec.reach if is_window(self.spec.mixer) else None


def _attending(model: Any) -> list[_Layers]:
    if not isinstance(model, LAYERED):
        return []
    if isinstance(model, Transformer):
        own = model.layer._replace(mixer=model.encoder_mixer, family=model.encoder_family)
        own = own._replace(pattern=model.encoder_pattern)
        kinds = [
            _Layers(own, model.encoder_positions, model.encoder_layers, is_causal=False),
            _Layers(model.layer, model.decoder_positions, model.decoder_layers),
        ]
    else:
        kinds = [_Layers(model.layer, model.positions, model.layers)]
    return [layers for layers in kinds if layers.spec.mixing.attends]


def _alone(layers: _Layers, model: Any) -> LanguageModel:
    """A language model with one of the layers: its pairs cost the same, whichever of them a layer sees."""
    spec = layers.spec._replace(cross_score="", cross_normalize="", cross_family=PLAIN, stacked=False)
    sizes = {"vocabulary": 1, "layers": 1, "max_length": model.max_length, "is_tied": False}
    return LanguageModel(**sizes, positions=layers.positions, layer=spec)


def _by_token(mixer: str) -> str:
    """The mixer, with blocks of one token if it has blocks."""
    name, options = naming.parse(mixer)
    if name not in RULES:
        return mixer
    return f"{name}:" + ",".join(f"{option}={value}" for option, value in (options | {"block": 1}).items())


def _empty_cache(model: LanguageModel | Transformer, room: int) -> Any:
    """What the layers of a model hold of one text, with room for `room` tokens."""
    given: tuple = (jnp.zeros((1, room), jnp.int32),)
    if isinstance(model, Transformer):
        given = Memory(jnp.zeros((1, 1, model.layer.width)), jnp.ones(1, jnp.int32)), room
    cache: Any = model.init_with_output(jax.random.key(0), *given, method="init_cache")[0]
    return cache.history, cache.state.layers if isinstance(model, Transformer) else cache.state


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
