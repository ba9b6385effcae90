"""Heads of a finished run: what each is worth, what it looks at, and what it carries."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.modules.mixers import attends
from attention_jax.reports import importance
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.reports.run import Flat, estimate, title_of
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run, read_config
from attention_jax.stores import here
from attention_jax.tasks.heads.language_model import LanguageModelSession
from attention_jax.tasks.heads.measuring import PARTS, measure
from attention_jax.tasks.heads.portrait import write_page
from attention_jax.tasks.heads.session import Session
from attention_jax.tasks.heads.translation import TranslationSession
from attention_jax.tasks.translation.measuring import HELD_OUT
from attention_jax.training.description import Description

SESSIONS: dict[str, type[Session]] = {"nmt": TranslationSession, "language_model": LanguageModelSession}
LABELS = {
    "change": "loss without it, +",
    "estimate": "gradient's estimate",
    "bleu_change": "BLEU without it, +",
    "positional": "at one relative position",
    "rare": "at the rarest",
    "aligned": "alignment error rate",
}
POSITIVE = ("sentences", "orders", "couples")
A_RUN = "Train one: --config=configs/nmt.py:transformer_book,embedded --workdir=FOLDER"


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used, and for a run that cannot be measured."""
    for name in config.parts:
        if name not in PARTS:
            raise UserError(f"config.parts: no part {name!r}: choose of {', '.join(PARTS)}.")
    if not config.parts:
        raise UserError(f"config.parts=(): choose of {', '.join(PARTS)}.")
    for name in ("split", "ordering"):
        if config[name] not in HELD_OUT:
            raise UserError(f"config.{name}={config[name]!r}: choose {' or '.join(HELD_OUT)}.")
    if config.tolerance < 0:
        raise UserError(f"config.tolerance={config.tolerance}: needs 0 or more.")
    for name in POSITIVE:
        if config[name] < 1:
            raise UserError(f"config.{name}={config[name]}: needs 1 or more.")
    run_of(config)


def run_of(config: ConfigDict) -> tuple[ConfigDict, Path]:
    """The config of the run that `config.run` names, and its folder. Raises UserError where it cannot be measured."""
    asked = f"config.run={config.run!r}"
    if not config.run:
        raise UserError(f"{asked}: name the folder of a finished run. {A_RUN}.")
    path = here(config.run)
    of_run = read_config(path)
    if of_run is None:
        raise UserError(f"{asked}: no run there. {A_RUN}.")
    if of_run.experiment not in SESSIONS:
        raise UserError(
            f"{asked}: a run of {of_run.experiment!r}; heads are those of {' and '.join(SESSIONS)}. {A_RUN}."
        )
    if not (path / "result.json").exists():
        raise UserError(f"{asked}: not finished. Go on with it: --mode=train --workdir={config.run}.")
    if why := _without_heads(of_run):
        raise UserError(f"{asked}: {why}. {A_RUN}.")
    if "patching" in config.parts and of_run.data.source != "embedded":
        raise UserError(
            f"{asked}: patching needs the embedded corpus, whose grammar has sentences that differ in one word; this "
            f"is {of_run.data.source!r}. Leave it out: --config.parts=\"('removing','roles','page')\"."
        )
    return of_run, path


def _without_heads(of_run: ConfigDict) -> str:
    """Why a run has no heads to measure; "" where it has."""
    if of_run.experiment == "nmt":
        return "" if of_run.model.name == "transformer" else f"{of_run.model.name!r} is a model without heads"
    if of_run.data.packing == "documents":
        return "its rows are packed documents, and heads are measured on windows"
    return "" if attends(of_run.model.mixer) else f"its mixer {of_run.model.mixer!r} does not attend"


def open_session(config: ConfigDict, folder: Path) -> Session:
    """The run, opened."""
    del folder
    of_run, path = run_of(config)
    return SESSIONS[of_run.experiment](config, of_run, path)


def together(session: Session, how: str) -> Together:
    """Nothing is trained: a run is its measurements."""
    del how

    def finish(configs: Sequence[ConfigDict], runs: Sequence[Run]) -> list[dict]:
        return [evaluate(session, config, run) for config, run in zip(configs, runs, strict=True)]

    return Together(finish)


def evaluate(session: Session, config: ConfigDict, run: Run) -> dict:
    """All numbers, and which code trained the run that they are of; heads.html beside them."""
    session, trained = dataclasses.replace(session, config=config), Run(session.path, 0.0).result() or {}
    if "page" in config.parts:
        write_page(session, run.path / "heads.html")
    return measure(session) | {"of_run": {"code": trained.get("code", {})}}


def identify(config: ConfigDict) -> str:
    """What tells the run from another in the same folder, or from itself with more seeds."""
    return hashlib.sha256((run_of(config)[1] / "result.json").read_bytes()).hexdigest()


def describe(config: ConfigDict) -> Description:
    """A step of the run's own training."""
    return open_session(config, Path()).description


def figures(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """What heads are worth, how the estimate agrees, pruning, roles, and what is carried: of the parts measured."""
    folder, flat, sizes = run.subfolder("figures"), flatten(result), session.sizes
    members = [flatten(one) for one in result.get("members", [result])]
    drawn: list[Figure] = []
    if "removing" in config.parts:
        drawn.append(importance.worth_maps(flat, sizes, folder / "worth.png"))
        drawn.append(importance.agreement_figure(members, sizes, folder / "agreement.png"))
        drawn.append(importance.pruning_curves(flat, sizes, folder / "pruning.png"))
    if "roles" in config.parts:
        marks = {"threshold": config.roles.to_dict(), "chance": result["roles"]["chance"]}
        drawn.append(importance.roles_figure(members, sizes, marks, folder / "roles.png"))
    if "patching" in config.parts:
        drawn.append(importance.carried_maps(flat, sizes, folder / "carried.png"))
    return drawn


def tables(session: Session, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The whole, how many heads can go, roles, and every head."""
    del run
    flat, sizes = flatten(result), session.sizes
    shown = []
    if "removing" in config.parts:
        shown += [_whole(flat), _spared(flat, config), *_pruned(flat)]
    if "roles" in config.parts:
        shown.append(_roles(flat, config))
    if "patching" in config.parts:
        rows = [(kind, estimate(flat, f"patching.together.{kind}")) for kind in sizes]
        shown.append(Table(title_of(flat, "Heads of one kind patched together"), ("kind", "fraction recovered"), rows))
    return [*shown, _every_head(flat, sizes)]


def _whole(flat: Flat) -> Table:
    names = [name for name in flat if name in ("loss", "bleu") or name.startswith("spearman.")]
    note = "Spearman's ρ is that of the loss without each head and the gradient's estimate, over the heads of a seed."
    return Table(title_of(flat, "The whole model"), ("", ""), [(name, estimate(flat, name)) for name in names], note)


def _spared(flat: Flat, config: ConfigDict) -> Table:
    starts = [name for name in flat if name.startswith("spared.")]
    rows = [(name.removeprefix("spared."), estimate(flat, name)) for name in starts]
    note = "A kind's name is an order of its heads alone, by the estimate; the other kinds are whole."
    title = f"Heads that can go before the loss has risen by {config.tolerance:g} nats a token"
    return Table(title_of(flat, title), ("order", "share of its heads"), rows, note)


def _pruned(flat: Flat) -> list[Table]:
    orders = {order: label for order, label in importance.ORDERS.items() if f"pruned.{order}.0.bleu" in flat}
    counts = [name.split(".")[2] for name in flat if name.startswith("pruned.estimate.")]
    rows = [(n, *(estimate(flat, f"pruned.{order}.{n}.bleu") for order in orders)) for n in counts]
    title = title_of(flat, "BLEU without the heads that are worth least, by three orders")
    return [Table(title, ("heads removed", *orders.values()), rows)] if orders else []


def _roles(flat: Flat, config: ConfigDict) -> Table:
    names = [name for name in flat if name.startswith("roles.") and ".chance." not in name]
    rows = [(name.removeprefix("roles."), estimate(flat, name)) for name in names]
    least = config.roles
    note = (
        f"Positional: at least {least.positional:g} of the tokens look most at one relative position. Rare: "
        f"{least.rare:g}, at the rarest token. Aligned: an alignment error rate of at most {least.aligned:g}."
    )
    return Table(title_of(flat, "Heads with a role, a seed"), ("role", "heads"), rows, note)


def _every_head(flat: Flat, sizes: Mapping[str, tuple[int, int]]) -> Table:
    found = dict.fromkeys(name.rpartition(".")[2] for name in flat if name.startswith("heads."))
    heads = [
        (kind, str(layer + 1), str(rank + 1))
        for kind, (layers, of_layer) in sizes.items()
        for layer in range(layers)
        for rank in range(of_layer)
    ]
    rows = [(*head, *(estimate(flat, ".".join(("heads", *head, name))) for name in found)) for head in heads]
    columns = ("kind", "layer", "rank", *(LABELS.get(name, name) for name in found))
    return Table(title_of(flat, "Every head"), columns, rows, importance.RANKED)


EXPERIMENT = Experiment(
    open=open_session,
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    identify=identify,
    steps=lambda config: 1,
    metric=lambda config: "spearman.all",
)
