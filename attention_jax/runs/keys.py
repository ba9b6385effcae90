"""What the config's keys are called elsewhere, and which of ours is meant."""

from collections.abc import Collection

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
