"""The config's keys: which a section has, what they are called elsewhere, and which of ours is meant."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from attention_jax.errors import UserError

# Names from elsewhere, and ours, of which the first is meant that the config has.
ABBREVIATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "rate", "peak_lr", "base_lr"), ("learning_rate",)),
    **dict.fromkeys(("wd", "decay", "l2"), ("weight_decay",)),
    **dict.fromkeys(("bs", "batch_size", "batch"), ("batch_tokens", "batch")),
    **dict.fromkeys(("epochs", "num_epochs", "num_steps", "max_steps", "iterations", "iters"), ("steps",)),
    **dict.fromkeys(("warmup", "num_warmup_steps"), ("warmup_steps",)),
    **dict.fromkeys(("clip", "grad_clip", "max_grad_norm", "gradient_clip"), ("clip_norm",)),
    **dict.fromkeys(("beta1", "adam_b1", "adam_beta1"), ("b1",)),
    **dict.fromkeys(("beta2", "adam_b2", "adam_beta2"), ("b2",)),
    **dict.fromkeys(("epsilon", "adam_eps", "adam_epsilon"), ("eps",)),
    **dict.fromkeys(("dim", "d_model", "hidden_size", "embed_dim", "n_embd"), ("width", "hidden")),
    **dict.fromkeys(("d_ff", "ffn", "ffn_dim", "mlp_dim"), ("feed_forward",)),
    **dict.fromkeys(("num_heads", "n_heads", "n_head"), ("heads",)),
    **dict.fromkeys(("layers", "num_layers", "n_layers", "n_layer"), ("layers", "encoder_layers")),
    **dict.fromkeys(("drop", "dropout_rate", "p_drop"), ("dropout",)),
    **dict.fromkeys(("smoothing", "ls"), ("label_smoothing",)),
    **dict.fromkeys(("seed", "random_seed"), ("seeds",)),
    **dict.fromkeys(("vocab", "vocab_size"), ("vocabulary",)),
    **dict.fromkeys(("max_len", "seq_len", "block_size"), ("max_length", "length")),
    **dict.fromkeys(("beam", "beam_size", "num_beams"), ("beams",)),
    **dict.fromkeys(("eval_every", "eval_interval"), ("evaluate_every",)),
    **dict.fromkeys(("save_every", "ckpt_every"), ("checkpoint_every",)),
}


def meant(path: str, keys: Collection[str]) -> str:
    """The config's own key for what others call so, of the same section before any other; "" where there is none."""
    section, _, name = path.rpartition(".")
    names = ABBREVIATIONS.get(name, ())
    beside = [f"{section}.{own}".lstrip(".") for own in names]
    anywhere = [key for own in names for key in keys if key.rpartition(".")[2] == own]
    return next((key for key in (*beside, *anywhere) if key in keys), "")


def require_keys(name: str, section: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise UserError where a section of the config lacks a key, or has one that nobody reads."""
    for key in known:
        if key not in section:
            raise UserError(f"the config has no {f'{name}.{key}'!r}.")
    for key in section:
        if key not in known:
            raise UserError(f"config.{name}.{key}: no such key; there are {', '.join(known)}.")


def lacking(error: Exception) -> str:
    """The key that a config was asked for and lacks; "" where the error is another."""
    if not isinstance(error, KeyError) and not any(isinstance(arg, KeyError) for arg in error.args):
        return ""
    nearest = re.search(r'instead of "(\w+)"', str(error))
    return nearest[1] if nearest else re.sub(r"\W", "", str(error))
