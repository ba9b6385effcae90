"""Which attention? Its families and what replaces it, beside softmax, on copying, recall, a text and translation.

    python launch.py --config=configs/attention_variants.py:core
    python launch.py --config=configs/attention_variants.py:small
    python launch.py --config=configs/attention_variants.py:smoke
    python launch.py --config=configs/attention_variants.py:text --config.data.path=PATH/input.txt
    python launch.py --config=configs/attention_variants.py:translation
    python launch.py --config=configs/attention_variants.py:small --sweep=patterns
    python launch.py --config=configs/attention_variants.py:translation --sweep=patterns
    python launch.py --config=configs/attention_variants.py:small --sweep=temperatures

It is a sweep unless --mode says otherwise; `small` is `core` in models of a quarter of the parameters. Differences are
to softmax attention, the first setting. `differential` has half of its heads, so that each of its maps is of as many
features as one of softmax (Ye et al. 2024, §2.1), but in translation, where other attention has the same heads; how
many there are is the sweep's, whatever --config.model.heads says. All settings have softmax's parameters, within 1%, by
the width of their feed-forward layers; with these flags its training FLOPs, by steps:

    --config.sweep.match=flops --config.sweep.match_by=train.steps

`--sweep=patterns` asks which keys a token has to see, in translation also which a word of the source; sentences are
short there, and so are windows. `--sweep=temperatures` asks where a learned temperature of cosine scores starts, of
every variant but `translation`.
"""

import runpy
from pathlib import Path

from attention_jax.sweeps.space import grid, product, seeds, zipped

POSITIONS = Path(__file__).with_name("positional_encoding.py")

# Keys of a model, the first those of the baseline. What has no queries to turn has positions of its own, or none, as
# softmax has beside them.
TURNED: tuple[dict[str, str], ...] = (
    {},
    {"score": "cosine:learned=True"},
    {"score": "cosine:temperature=0.1,learned=True"},  # 1 / log2(L² − L) for texts of 32 (Henry et al. 2020, §3.1)
    {"score": "l2"},
    {"score": "gaussian:learned=True"},
    {"score": "laplacian:learned=True"},
    {"normalize": "learned_sink"},
    {"family": "talking"},
    {"family": "differential"},
    {"family": "gated"},
    {"family": "forgetting"},
    {"family": "selective"},
    {"mixer": "window"},
    {"mixer": "latent"},
    {"mixer": "retention"},
)
OTHERS: tuple[dict[str, str], ...] = (
    {},
    {"family": "contextual"},
    {"mixer": "linear"},
    {"mixer": "linear:features=positive"},
    {"mixer": "gated_linear"},
    {"mixer": "delta"},
)
FAMILIES = (*(one | {"positions": "rotary"} for one in TURNED), *(one | {"positions": "none"} for one in OTHERS))
KEYS = ("positions", "score", "normalize", "family", "mixer")
PATTERNS = (
    "all",
    "local:window=7",
    "local:window=7,first=1",
    "streaming:sinks=1,window=8",
    "big_bird:block=4,window=1",
    "strided:stride=8",
)
IN_SENTENCES = (  # of the source, and of what is translated of it
    "all",
    "local:window=2",
    "local:window=2,first=1",
    "big_bird:block=2,window=1",
    "strided:stride=3",
)
SCORES = ("scaled_dot", *(f"cosine:temperature={start},learned=True" for start in (1.0, 0.3, 0.1, 0.03)))
# With rotary positions: the keys that vary, all by the same values.
SWEEPS = {"patterns": (("model.pattern",), PATTERNS), "temperatures": (("model.score",), SCORES)}
IN_TRANSLATION = {"patterns": (("model.kwargs.encoder_pattern", "model.kwargs.pattern"), IN_SENTENCES)}
FEW: tuple[dict[str, str], ...] = ({}, {"score": "l2"}, {"family": "differential"}, {"mixer": "delta"})

TASKS = ("copy", "associative_recall")
FACTORS = (1.0, 1.5, 2.0, 4.0)
# What a variant changes of that of position encodings.
CHANGES: dict[str, dict[str, dict]] = {
    "core": {"data": {"length": 32, "shortest": 8, "symbols": 48, "factors": FACTORS}},
    "small": {
        "model": {"width": 32, "heads": 2, "kv_heads": 2, "feed_forward": 64},
        "data": {"length": 16, "shortest": 4, "symbols": 24, "factors": FACTORS},
        "train": {"steps": 1500, "evaluate_every": 1500, "checkpoint_every": 1500},
    },
}
VARIANTS = ("core", "small", "smoke", "text", "translation")


def get_config(variant="core"):
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(VARIANTS)}")
    config = runpy.run_path(str(POSITIONS))["get_config"]("core" if variant == "small" else variant)
    for name, section in CHANGES.get(variant, {}).items():
        config[name].update(section)
    by = "model.kwargs.feed_forward" if variant == "translation" else "model.feed_forward"
    config.sweep.update({"match": "parameters", "match_by": by})
    return config


def sweep(variant="core", name=""):
    if name:
        return _named_sweep(variant, name)
    if variant == "translation":  # of the decoder's attention to its own words, which has no window
        defined = [one for one in FAMILIES if one.get("mixer") != "window"]
        return product([_named(one, "model.kwargs.decoder_", "model.kwargs.") for one in defined], seeds(5))
    heads = get_config(variant).model.heads
    if variant == "smoke":
        few = [_named(one | {"positions": "none"}) | _heads(one, heads) for one in FEW]
        return product(few, grid("data.task", TASKS[:1]), seeds(2))
    return product([_named(one) | _heads(one, heads) for one in FAMILIES], grid("data.task", _tasks(variant)), seeds(5))


def _named_sweep(variant, name):
    sweeps = IN_TRANSLATION if variant == "translation" else SWEEPS
    if name not in sweeps:
        raise ValueError(f"variant {variant!r} has no sweep {name!r}: choose one of {', '.join(sweeps)}")
    keys, values = sweeps[name]
    varied = zipped(*(grid(key, values) for key in keys))
    if variant == "translation":
        return product(grid("model.kwargs.decoder_positions", ("rotary",)), varied, seeds(5))
    return product(grid("model.positions", ("rotary",)), varied, grid("data.task", _tasks(variant)), seeds(5))


def _tasks(variant):
    return ("text",) if variant == "text" else TASKS


def _named(family, of_positions="model.", of_others="model."):
    """A family as overrides, each with every key, so that all rows of a table have the same columns."""
    plain = {"score": "scaled_dot", "normalize": "softmax", "family": "plain", "mixer": "attention"}
    return {(of_positions if key == "positions" else of_others) + key: (plain | family)[key] for key in KEYS}


def _heads(family, softmax):
    heads = softmax // 2 if family.get("family") == "differential" else softmax
    return {"model.heads": heads, "model.kv_heads": heads}
