"""Decoding: words a second of the project's searches and of CTranslate2's, with the same parameters."""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.tokenizers import BOS, PAD
from attention_jax.decoding.beam import beam_search
from attention_jax.decoding.greedy import greedy
from attention_jax.tasks.benchmark.cases import translator_of
from attention_jax.tasks.benchmark.pairs import random_words
from attention_jax.tasks.benchmark.peers import Asked
from attention_jax.tasks.benchmark.rounds import Row, in_turn
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.tasks.timing import median_rate
from attention_jax.tasks.translation.model import init

NO_END = -1  # a word that is never written: every translation is as long as it may be


def measure(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Words a second of every (sentences, beams) of `config.decode.settings`."""
    case = config.decode
    model, sources = translator_of(case), _sources(case)
    variables = jax.jit(functools.partial(init, model))(jax.random.key(0))
    path = _write(tools.folder / "model.npz", variables, sources, case.model.kwargs.heads)
    for sentences, beams in case.settings:
        search = functools.partial(jax.jit(searching(model, case.words, beams)), variables, sources[:sentences])
        flags = {"model": path, "batch": sentences, "beams": beams, "length": case.words, "seconds": config.seconds}
        with tools.peers.running(_asked(flags)) as running:
            written = functools.partial(_words_of, search)
            words = np.asarray(search())
            said = [peer.ask() for peer in running.values()]
            others = {name: functools.partial(_rate_of, peer) for name, peer in running.items()}
            ours, theirs = in_turn(config.rounds, functools.partial(median_rate, written, config.seconds), others)
        note = f"{said[0]['version']}: {_agreement(words, np.array(said[0]['first']))}" if said else ""
        how = "greedy" if beams == 1 else f"beam {beams}"
        yield Row("decode", f"{how}, {sentences} × {case.words} words", "words/s", ours, theirs, note)


def searching(model: nn.Module, words: int, beams: int) -> Callable[[Any, Any], jax.Array]:
    """(variables, sources) → the best translation of each, of so many words."""

    def search(variables, sources):
        lengths = jnp.full(len(sources), sources.shape[1])
        memory = model.apply(variables, sources, lengths, method="encode")
        cache: Any = model.apply(variables, memory, words, method="init_cache")
        step: Any = functools.partial(model.apply, variables, method="step")
        ends = {"bos": BOS, "eos": NO_END, "pad": PAD}
        if beams == 1:
            return greedy(step, cache, lengths == 0, words, **ends)
        return beam_search(step, cache, lengths == 0, words, beams=beams, length_penalty=1.0, **ends).tokens[:, 0]

    return search


def _sources(case: ConfigDict) -> np.ndarray:
    sentences = max(sentences for sentences, _ in case.settings)
    return random_words(sentences, case.length, case.vocabulary)


def _write(path: Path, variables: Any, sources: np.ndarray, heads: int) -> Path:
    """The file that the peer reads: parameters by path, and the sentences."""
    parameters = flax.traverse_util.flatten_dict(variables["params"], sep="/")
    np.savez(path, sources=sources, heads=heads, **jax.device_get(parameters))
    return path


def _asked(flags: Mapping[str, Any]) -> dict[str, Asked]:
    """CTranslate2 in float32, in the ways that it has for two cores; on a GPU in one."""
    ways: dict[str, dict[str, Any]] = {
        "CTranslate2, a thread": {"threads": 1},
        "CTranslate2, two threads": {"threads": 2},
    }
    if flags["batch"] > 1:
        ways["CTranslate2, two workers"] = {"threads": 1, "workers": 2}
    if jax.default_backend() == "gpu":
        ways = {"CTranslate2": {"threads": 1, "device": "cuda"}}
    return {name: Asked("ctranslate2_decode.py", "ctranslate2", {**flags, **way}) for name, way in ways.items()}


def _words_of(search: Callable[[], jax.Array]) -> int:
    """How many words a search writes, all of them written."""
    return jax.block_until_ready(search()).size


def _rate_of(peer: Any) -> float:
    return peer.ask()["words_per_second"]


def _agreement(ours: np.ndarray, theirs: np.ndarray) -> str:
    """How much of the first translations is the same; what follows a word that differs may differ."""
    same = np.mean(ours[: len(theirs), : theirs.shape[1]] == theirs)
    return f"{100 * same:.0f}% of the first {theirs.size} words are the same"
