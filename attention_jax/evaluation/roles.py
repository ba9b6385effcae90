"""What a head looks at: a relative position, the word that is translated, the rarest word (Voita et al. 2019, §5)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

Maps = Sequence[Float[np.ndarray, "queries keys"]]  # one head's weights, of each sentence


def positional_share(maps: Maps, is_causal: bool) -> tuple[float, int]:
    """The largest share of tokens whose largest weight is at one relative position, and that position.

    −1 is the token before. A token counts where it can see that position and has a choice: more than one key. Only
    positions that half of the tokens can see are considered, so that no few ends of long sentences decide.
    """
    found = [_relative(weights, is_causal) for weights in maps]
    total = sum(len(at) for at, _, _ in found)
    longest = max((len(weights) for weights in maps), default=0)
    best = (0.0, 0)
    for offset in sorted(range(-longest, longest + 1), key=abs):
        room = sum(int(((low <= offset) & (offset <= high)).sum()) for _, low, high in found)
        hits = sum(int((at == offset).sum()) for at, _, _ in found)
        if room and 2 * room >= total and hits / room > best[0]:
            best = (hits / room, offset)
    return best


def _relative(weights: Float[np.ndarray, "queries keys"], is_causal: bool) -> tuple[np.ndarray, ...]:
    """Where each token with a choice looks most, and the first and the last key that it can see, all from itself."""
    queries, keys = weights.shape
    index = np.arange(queries)
    last = index if is_causal else np.full(queries, keys - 1)
    chosen = last > 0
    return tuple(ends[chosen] for ends in (weights.argmax(-1) - index, -index, last - index))


def rarest_share(maps: Maps, counts: Sequence[Int[np.ndarray, " keys"]]) -> float:
    """The share of tokens whose largest weight is on a token that is none more often in the training data.

    `counts` says of each sentence's keys how often they are there. Of tokens that are equally rare, each is the rarest.
    """
    hits = [of_keys[weights.argmax(-1)] == of_keys.min() for weights, of_keys in zip(maps, counts, strict=True)]
    return float(np.concatenate(hits).mean())


def chance_of_rarest(counts: Sequence[Int[np.ndarray, " keys"]]) -> float:
    """`rarest_share` of a head that looks anywhere; every token of a sentence is a query and a key."""
    return float(
        np.concatenate([np.full(len(of_keys), (of_keys == of_keys.min()).mean()) for of_keys in counts]).mean()
    )
