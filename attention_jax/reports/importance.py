"""Figures of what heads are worth, what they look at, and what they carry; of a run's flat result."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from attention_jax.reports.figures import Figure, Line, colours, draw_bands, legend, log_scale, new_figure, save
from attention_jax.reports.run import Flat, measured_line

Sizes = Mapping[str, Sequence[int]]  # layers and heads, by kind of attention
WORTH = {"change": "loss gained, nats", "estimate": "|∂ loss / ∂ gate|", "bleu_change": "BLEU lost"}
FAINT = 0.01  # the least that a scale of colours ends at: what is all noise is drawn pale
ORDERS = {"exact": "by the loss without each", "estimate": "by the gradient's estimate", "random": "at random"}
RANKED = (
    "The heads of a layer are ranked, in each seed, by the loss without them on the split that orders them: the first "
    "is worth most."
)


def worth_maps(result: Flat, sizes: Sizes, path: Path) -> Figure:
    """What each head is worth, by kind, layer and rank: exactly, by the gradient, and in BLEU where that is known."""
    known = {name: label for name, label in WORTH.items() if _has(result, f"heads.{next(iter(sizes))}.1.1.{name}")}
    figure, axes = new_figure(len(known), len(sizes), 3.4, 2.1)
    for row, (name, label) in zip(axes, known.items(), strict=True):
        sign = -1 if name == "bleu_change" else 1
        _draw_maps(row, {kind: sign * of_heads(result, name, kind, sizes) for kind in sizes}, label)
    caption = (
        f"What every head is worth: the loss without it, the gradient's estimate, and for translators BLEU. {RANKED}"
    )
    return save(figure, path, caption)


def carried_maps(result: Flat, sizes: Sizes, path: Path) -> Figure:
    """Which fraction of the change in the logits each head carries, by kind, layer and rank."""
    figure, axes = new_figure(1, len(sizes), 3.4, 2.1)
    _draw_maps(axes[0], {kind: of_heads(result, "recovered", kind, sizes) for kind in sizes}, "fraction of the change")
    caption = (
        "One word of the source is changed. In the unchanged sentence's run the output of one head is replaced by that "
        "of the changed one's: the fraction of the change in the difference of the two words' logits that this makes. "
    )
    return save(figure, path, caption + RANKED)


def of_heads(result: Flat, name: str, kind: str, sizes: Sizes) -> Float[np.ndarray, "layers heads"]:
    """A number of every head of a kind, by layer and rank; NaN where it is not known."""
    layers, heads = sizes[kind]
    keys = [[f"heads.{kind}.{layer + 1}.{rank + 1}.{name}" for rank in range(heads)] for layer in range(layers)]
    return np.array([[np.nan if result.get(key) is None else result[key] for key in row] for row in keys])


def agreement_figure(members: Sequence[Flat], sizes: Sizes, path: Path) -> Figure:
    """The gradient's estimate against the exact change of the loss, a point a head of a seed."""
    figure, axes = new_figure(1, len(sizes), 3.2, 3.0, sharex=True, sharey=True)
    palette = colours(sizes)
    for axis, kind in zip(axes[0], sizes, strict=True):
        x, y = (
            np.concatenate([of_heads(one, name, kind, sizes).ravel() for one in members])
            for name in ("estimate", "change")
        )
        axis.scatter(x, y, s=16, color=palette[kind], alpha=0.7, linewidth=0)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set(title=kind, xlabel=WORTH["estimate"])
        axis.set_yscale("symlog", linthresh=0.01)  # a loss may fall
        axis.grid(alpha=0.3)
    for axis in axes[0]:
        log_scale(axis, "x")
    axes[0, 0].set_ylabel(WORTH["change"])
    caption = "Every head of every seed: the loss without it against the gradient's estimate, both in nats a token."
    return save(figure, path, caption)


def pruning_curves(result: Flat, sizes: Sizes, path: Path) -> Figure:
    """The loss against how many heads are removed, by three orders, and of one kind alone; BLEU where that is known."""
    orders = {f"all kinds, {name}": measured_line(result, f"pruning.{name}") for name in ORDERS}
    kinds = {f"{name} alone": measured_line(result, f"pruning.{name}") for name in sizes}
    scored = [name for name in ORDERS if _has(result, f"pruned.{name}.0.bleu")]
    bleu = {f"all kinds, {name}": _pruned_line(result, name) for name in scored}
    panels = [("loss, nats a token", orders), ("loss, nats a token", kinds), *[("BLEU", bleu)] * bool(bleu)]
    figure, axes = new_figure(1, len(panels), 4.6, 3.4)
    palette = colours([*orders, *kinds])
    for axis, (label, lines) in zip(axes[0], panels, strict=True):
        shares = {name: (np.array(x) / max(x), mean, low, high) for name, (x, mean, low, high) in lines.items()}
        draw_bands(axis, shares, palette)
        axis.set(xlabel="share of the heads removed", ylabel=label)
    axes[0, 1].sharey(axes[0, 0])
    legend(figure, axes.flat)
    caption = (
        "Heads are removed one after the other, what is worth least first: by the loss without each, by the gradient's "
        "estimate, both on other sentences, and at random. In the second panel those of one kind alone, by the estimate"
    )
    return save(figure, path, caption + ("; in the third BLEU." if bleu else "."))


def _pruned_line(result: Flat, order: str) -> Line:
    """BLEU by how many heads of an order are removed, with its intervals."""
    return measured_line({name.removesuffix(".bleu"): value for name, value in result.items()}, f"pruned.{order}")


def roles_figure(members: Sequence[Flat], sizes: Sizes, marks: Mapping[str, Mapping[str, float]], path: Path) -> Figure:
    """What tells roles, a point a head of a seed, a colour a layer; `marks` are lines by name: {role: height}."""
    shown = {"positional": "most at one position", "rare": "most at the rarest", "aligned": "alignment error rate"}
    columns = [(role, kind) for role in shown for kind in sizes if _has(members[0], f"heads.{kind}.1.1.{role}")]
    figure, axes = new_figure(1, 1, max(1.9 * len(columns), 4.0), 3.6)
    axis, palette = axes[0, 0], colours([f"layer {n + 1}" for n in range(max(layers for layers, _ in sizes.values()))])
    for column, (role, kind) in enumerate(columns):
        for layer, (name, colour) in zip(range(sizes[kind][0]), palette.items(), strict=False):
            heights = np.concatenate([of_heads(one, role, kind, sizes)[layer] for one in members])
            spread = column + np.linspace(-0.3, 0.3, len(heights))
            axis.scatter(spread, heights, s=16, color=colour, alpha=0.75, linewidth=0, label=name)
        for (name, lines), style in zip(marks.items(), ("-", ":"), strict=False):
            if role in lines:
                axis.hlines(lines[role], column - 0.4, column + 0.4, "black", style, linewidth=1, label=name)
    axis.set_xticks(range(len(columns)), [f"{kind}:\n{shown[role]}" for role, kind in columns])
    axis.set(ylim=(-0.03, 1.03), ylabel="share of tokens, or error rate")
    axis.grid(alpha=0.3, axis="y")
    legend(figure, [axis])
    caption = (
        "Every head of every seed: the share of tokens whose largest weight is at one relative position, that on the "
        "rarest token of the sentence, and the alignment error rate (less is better) against the true alignments. "
        "Chance is of one who looks anywhere; of the alignment error rate, of one who looks along the diagonal."
    )
    return save(figure, path, caption)


def _has(flat: Flat, name: str) -> bool:
    return flat.get(name) is not None


def _draw_maps(axes: Any, maps: Mapping[str, Float[np.ndarray, "layers heads"]], label: str) -> None:
    """A map a kind, on one scale of colours from 0, each number in its cell."""
    top = max(FAINT, *(float(np.nanmax(values)) for values in maps.values()))
    digits = max(0, 2 - math.floor(math.log10(top)))
    for axis, (kind, values) in zip(axes, maps.items(), strict=True):
        layers, heads = values.shape
        extent = (0.5, heads + 0.5, layers + 0.5, 0.5)  # layers and ranks count from 1
        image = axis.imshow(
            values, cmap="Reds", vmin=0, vmax=top, aspect="auto", interpolation="nearest", extent=extent
        )
        for (layer, rank), value in np.ndenumerate(values):
            ink = "white" if value > 0.6 * top else "black"
            axis.text(
                rank + 1,
                layer + 1,
                f"{round(value, digits) + 0.0:.{digits}f}",
                ha="center",
                va="center",
                fontsize=7,
                color=ink,
            )
        axis.set(xlabel="rank in the layer", ylabel="layer", title=kind)
        axis.set_xticks(range(1, heads + 1))
        axis.set_yticks(range(1, layers + 1))
    axes[0].figure.colorbar(image, ax=list(axes), label=label)
