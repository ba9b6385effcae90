"""Attention as a config names it: the record that its names make, and the backend that computes it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attention_jax import backends
from attention_jax.modules.families import PLAIN, Family, make_family
from attention_jax.ops.attention import Attention, Relative, require_fitting
from attention_jax.ops.encoding import Encoding
from attention_jax.ops.local import gaussian_falloff
from attention_jax.ops.masking import Mask, combine, window_mask
from attention_jax.ops.mixing import WINDOW
from attention_jax.ops.normalizing import make_normalizer
from attention_jax.ops.patterns import narrowed
from attention_jax.ops.positions import make_encoding
from attention_jax.ops.scoring import make_score

# Keys of models that name encodings, and the keys that name the families of the same attention.
POSITIONS = {"positions": "family", "encoder_positions": "encoder_family", "decoder_positions": "family"}


class AttentionSpec(NamedTuple):
    """Attention as a config names it: a score, a normalizer, a backend, a family, with options as "gaussian:width=2".

    `score_key`, `normalize_key` and `family_key` are the config's keys for them, which errors name. `kind` is that of
    the attention: not every family is defined for all.
    """

    score: str = "scaled_dot"
    normalize: str = "softmax"
    backend: str = "reference"
    score_key: str = "score"
    normalize_key: str = "normalize"
    family: str = PLAIN
    family_key: str = "family"
    kind: str = "decoder"

    @property
    def of_family(self) -> Family:
        """Raises ValueError for an unknown name, and for a family that is not defined for the kind."""
        return make_family(self.family, self.family_key, self.kind)

    def attention(self, encoding: Encoding | None = None) -> Attention:
        """The record, without arrays. Raises ValueError for unknown names, and for names that do not go together."""
        relative = Relative(encoding.bias, mix=encoding.mix, pairs=encoding.pairs) if encoding else Relative()
        score = make_score(self.score, self.score_key)
        record = Attention(score, (), make_normalizer(self.normalize, self.normalize_key), relative=relative)
        require_fitting(record, self.score, self.normalize)
        asked = self.of_family.asked(record)
        if record.normalizer.of_weights and (asked.has_bias or asked.maps.scores):
            raise ValueError(
                f"normalize={self.normalize!r}: needs weights of 0 or more, and {self.family_key}={self.family!r} may "
                "make them negative. Choose normalize='softmax'."
            )
        return asked

    def require_room(self, length: int) -> None:
        """Raise ValueError where the score has no room for a text of `length` tokens."""
        room = make_score(self.score, self.score_key).room
        if room is not None and length > room:
            raise ValueError(f"{self.score_key}={self.score!r}: has room for {room} tokens, not for {length}.")

    def check(self, encoding: Encoding | None = None) -> None:
        """Raise ValueError for unknown names, names that do not go together, and what the backend cannot do."""
        backends.require(self.backend, self.attention(encoding))


def cross_spec(
    score: str, normalize: str, cross_score: str, cross_normalize: str, backend: str, family: str = PLAIN
) -> AttentionSpec:
    """Attention to the source: scored as a text's attention to itself, but for a `cross_…` that is not empty."""
    return AttentionSpec(
        cross_score or score,
        cross_normalize or normalize,
        backend,
        "cross_score" if cross_score else "score",
        "cross_normalize" if cross_normalize else "normalize",
        family,
        "cross_family",
        "cross",
    )


def with_backend(
    flat: Mapping[str, Any], length: int, masks: Sequence[Mask | None], tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """A model's fields, with its `backend` replaced by the one that computes attention to up to `length` tokens.

    `masks` are those of all its texts, at that length; `tell` is told why backends before the chosen one are not.
    Raises ValueError if no backend that is named can do what is asked.
    """
    specs = _specs(flat)
    encodings = {key: make_encoding(flat[key], key) for key in POSITIONS if key in flat}
    if WINDOW in (flat.get("mixer"), flat.get("encoder_mixer")):
        masks = [combine(mask, window_mask(length, length, flat["reach"])) for mask in masks]
    masks = narrowed(masks, [flat[key] for key in ("pattern", "encoder_pattern") if key in flat], length)
    records = [spec.attention(encodings.get(key)) for key, spec in specs.items()]
    if flat.get("span") == "local_p":
        records = [one._replace(relative=one.relative._replace(falloff=gaussian_falloff)) for one in records]
    asked = [record._replace(mask=mask) for record in records for mask in masks]
    size = flat["width"] // flat["heads"] if flat.get("heads") else None
    part = size and size // max(spec.of_family.parts for spec in specs.values())
    call = backends.Call(str(flat["dtype"]), None, length, part, size, "attention" in flat["dropout_sites"])
    return {**flat, "backend": backends.choose(flat["backend"], asked, call, tell)}


def _specs(flat: Mapping[str, Any]) -> dict[str, AttentionSpec]:
    """What a model's fields say of each of its kinds of attention, by the key of its positions, and of "cross"."""
    names, families = (flat["score"], flat["normalize"]), {key: of for key, of in POSITIONS.items() if key in flat}
    kinds = {"encoder_positions": "encoder"}
    own = {
        key: AttentionSpec(*names, family=flat.get(of, PLAIN), family_key=of, kind=kinds.get(key, "decoder"))
        for key, of in families.items()
    }
    score, normalize = (flat.get(key, "") for key in ("cross_score", "cross_normalize"))
    cross = cross_spec(*names, score, normalize, "reference", flat.get("cross_family", PLAIN))
    return (own or {"": AttentionSpec(*names)}) | {"cross": cross}
