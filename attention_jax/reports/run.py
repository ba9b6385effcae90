"""A run's page: what was trained on what and what it cost, headline numbers, curves; every number is folded away."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention_jax.reports.figures import Figure, Line
from attention_jax.reports.page import Estimate, Table, render, show_number

Flat = Mapping[str, Any]  # dotted names
SIZES = ("encoder_layers", "decoder_layers", "layers", "width", "hidden", "heads", "positions")
MADE_BY = ("code", "device", "versions")  # a list of each where a run gained seeds elsewhere
NOT_SHOWN = ("ci95", "data", "members", "costs")  # parts of a result that are no numbers of their own


def run_page(
    title: str, config: Flat, result: Flat, tables: Sequence[Table], figures: Sequence[Figure], text: str
) -> str:
    """The page of a finished run, of its flat config and result; `text` is the config as it is written."""
    return render(title, [*tables, *_everything(result)], figures, text, facts_of(config, result))


def facts_of(config: Flat, result: Flat) -> dict[str, str]:
    """What was trained, on what, how, at which cost, where and by which code; what is not known is left out."""
    told = {
        "model": _model(config, result),
        "data": _data(config, result),
        "training": _training(config),
        "cost": _cost(result),
        "device": _joined([*_every(result, "device"), _told(result, "seconds", "{} s in all")]),
        "code": _code(result),
    }
    return {name: text for name, text in told.items() if text}


LAST = (
    "The loss in training is that of the last steps, with dropout and label smoothing; all else is measured without, "
    "and of the model that is kept: the best checkpoint, unless the config says otherwise."
)


def headline_table(result: Flat, names: Mapping[str, str], splits: Sequence[str]) -> Table:
    """A row a metric, `{"BLEU": "bleu", …}`, a column a split, with intervals over seeds; unknown ones are left out."""
    splits = [split for split in splits if any(f"{split}.{name}" in result for name in names.values())]
    rows = [
        (label, *(estimate(result, f"{split}.{name}") for split in splits))
        for label, name in names.items()
        if any(f"{split}.{name}" in result for split in splits)
    ]
    return Table(title_of(result), ("", *splits), rows, LAST if "train.loss" in result else "")


def title_of(result: Flat, what: str = "Result") -> str:
    """A heading that says over which seeds numbers are."""
    seeds = ", ".join(map(str, result["seeds"]))
    if len(result["seeds"]) == 1:
        return f"{what}, seed {seeds}"
    return f"{what}: means over seeds {seeds} with 95% intervals"


def estimate(result: Flat, name: str) -> Estimate | str:
    """A number of a result with its interval over seeds, where it has one; "" where it is not known."""
    if result.get(name) is None:
        return ""
    return Estimate(result[name], *result.get(f"ci95.{name}", ()))


def measured_line(result: Flat, name: str) -> Line:
    """Numbers by length, `NAME.LENGTH` or `NAME.FROM-TO` (at its longest), with their intervals, to draw."""
    start = f"{name}."
    rows = []
    for key, value in result.items():
        if key.startswith(start) and value is not None:
            ends = result.get(f"ci95.{key}") or (value, value)
            rows.append((int(key.rpartition(".")[2].rpartition("-")[2]), value, *ends))
    x, mean, low, high = zip(*rows, strict=True) if rows else ((), (), (), ())
    return x, mean, low, high


def by_length_table(result: Flat, names: Mapping[str, str], splits: Sequence[str], title: str, length: str) -> Table:
    """Metrics of texts by their length, `{"BLEU": "bleu_by_length", …}`: a row a split and a group of lengths."""
    rows = []
    for split in splits:
        groups = dict.fromkeys(
            key.rpartition(".")[2]
            for key in result
            if any(key.startswith(f"{split}.{name}.") for name in names.values())
        )
        rows += [
            (split, group, *(estimate(result, f"{split}.{name}.{group}") for name in names.values()))
            for group in groups
        ]
    return Table(title_of(result, title), ("", length, *names), rows)


def _everything(result: Flat) -> list[Table]:
    """Folded tables of every number, and of every text: signatures, versions, code."""
    kept = {name: value for name, value in result.items() if name.partition(".")[0] not in NOT_SHOWN}
    numbers = [
        (name, estimate(result, name))
        for name, value in kept.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    texts = [(name, value) for name, value in kept.items() if isinstance(value, str)]
    texts += [(part, str(one)) for part in MADE_BY if isinstance(kept.get(part), list) for one in kept[part]]
    return [
        Table(title_of(result, "Every number"), ("metric", "value"), numbers, folded=True),
        Table("Signatures, versions, code", ("", ""), texts, folded=True),
    ]


def _model(config: Flat, result: Flat) -> str:
    own = {name.removeprefix("model."): value for name, value in config.items() if name.startswith("model.")}
    parts = {name.removeprefix("kwargs."): value for name, value in own.items()}
    sizes = [f"{name.replace('_', ' ')} {parts[name]}" for name in SIZES if parts.get(name) not in (None, "")]
    name = config.get("model.name", config.get("model.mixer", ""))
    how = [f"{key} {parts[key]}" for key in ("score", "normalize") if key in parts]
    return _joined([name, *how, *sizes, _told(result, "cost.parameters", "{} parameters")])


def _data(config: Flat, result: Flat) -> str:
    where = config.get("data.path") and Path(config["data.path"]).name
    languages = config.get("data.languages") and " → ".join(config["data.languages"])
    pairs = [_told(result, f"data.pairs.{split}", f"{{}} {split} pairs") for split in ("train", "validation", "test")]
    sizes = [_told(config, f"data.{name}", f"{name} {{}}") for name in ("task", "length", "n", "noise")]
    return _joined([config.get("data.source", config.get("data.name", "")), where, languages, *pairs, *sizes])


def _training(config: Flat) -> str:
    seeds = ", ".join(map(str, config["seeds"]))
    rate = _told(config, "optimizer.learning_rate", "learning rate {}")
    return _joined(
        [
            _told(config, "train.steps", "{} steps"),
            rate,
            _told(config, "draws", "{} draws"),
            f"seed{'s' * (len(config['seeds']) > 1)} {seeds}",
        ]
    )


def _cost(result: Flat) -> str:
    return _joined(
        [
            _told(result, "cost.flops", "{} FLOPs a seed"),
            _told(result, "cost.seconds", "{} s of training steps a seed"),
            _told(result, "cost.step_seconds", "{} s a step"),
            _told(result, "cost.tokens_per_second", "{} tokens a second"),
        ]
    )


def _code(result: Flat) -> str:
    codes = [one for one in _every(result, "code") if one.get("commit")]
    jax = [f"jax {one['jax']}" for one in _every(result, "versions") if one.get("jax")]
    commits = [f"commit {one['commit']}{' and changes' if one.get('changed') else ''}" for one in codes]
    return _joined([*dict.fromkeys(commits), *dict.fromkeys(jax)])


def _every(result: Flat, part: str) -> list[Any]:
    """The devices, codes or versions that made a result: several where it gained seeds."""
    if part in result:
        return result[part] if isinstance(result[part], list) else [result[part]]
    own = {name.removeprefix(f"{part}."): value for name, value in result.items() if name.startswith(f"{part}.")}
    return [own] if own else []


def _told(found: Flat, name: str, text: str) -> str:
    value = found.get(name)
    if value is None or value == "":
        return ""
    return text.format(show_number(value) if isinstance(value, (int, float)) else value)


def _joined(parts: Sequence[Any]) -> str:
    return ", ".join(str(part) for part in parts if part)
