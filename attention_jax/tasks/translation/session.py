"""Translation, opened once: the corpus, the model with its programs, and a run's variables."""

import dataclasses
import functools
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax import hosts
from attention_jax.data.batching import split_buckets
from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import Corpus, Reference, load_references
from attention_jax.data.importing import load_or_import
from attention_jax.data.tokenizers import split_words
from attention_jax.stores import here
from attention_jax.tasks.translation.combining import COMBINE, require_combination, require_mean
from attention_jax.tasks.translation.model import build, describe, init_of, placement_of
from attention_jax.tasks.translation.programs import Translator, translator
from attention_jax.tasks.translation.translating import Trained
from attention_jax.training.placement import Placement
from attention_jax.training.saved import Init


@dataclasses.dataclass(frozen=True)
class Session:
    """Everything that a config's translator needs; each part is made once, when it is first asked for.

    `folder` has the corpus, which is imported there if it is not yet.
    """

    config: ConfigDict
    folder: Path
    _restored: dict[Path, list[Trained]] = dataclasses.field(default_factory=dict, init=False)

    @functools.cached_property
    def data(self) -> DataConfig:
        """`config.data`."""
        return DataConfig(**self.config.data)

    @functools.cached_property
    def corpus(self) -> Corpus:
        """The corpus, with the vocabularies of `config.train.init_from` if that names a run."""
        start = self.config.train.init_from
        return hosts.in_turn(lambda: load_or_import(self.folder, self.data, here(start) / "data" if start else None))

    @functools.cached_property
    def programs(self) -> Translator:
        """The model and its programs, each compiled when first called."""
        model = build(self.config, self.corpus.source.size, self.corpus.target.size)
        require_mean(self.config, model)
        return translator(model, self.config)

    @functools.cached_property
    def searching(self) -> Translator:
        """The programs with `config.evaluate.test_beams` beams."""
        config = ConfigDict(self.config.to_dict())
        plain = {"n_best": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0}
        config.evaluate.update({"beams": config.evaluate.test_beams, **plain})
        return translator(self.programs.model, config)

    @property
    def init(self) -> Init:
        """key → fresh variables. The model is made here, outside of any trace, because a trace's values end with it."""
        return init_of(self.programs.model)

    @property
    def placement(self) -> Placement:
        """Where the model's parameters lie."""
        return placement_of(self.config)

    def trained(self, config: ConfigDict, run: Path) -> list[Trained]:
        """The models of a trained run that translate, for each seed, as `config.evaluate` says.

        The run's config may differ from this one in dynamic values. Only the latest run's variables are kept.
        """
        if run not in self._restored:
            self._restored.clear()
            saved = (config, run, self.init, self.corpus.vocabulary, self.placement)
            of_seeds = COMBINE[config.evaluate.combine](config.evaluate.last, *saved)
            self._restored[run] = [Trained(self.programs, members, self.corpus, self.data) for members in of_seeds]
        return self._restored[run]

    @functools.cached_property
    def book(self) -> dict[str, Reference]:
        """The sentences of `config.evaluate.book_sentences` that are in the corpus, from any split, in their order."""
        sentences = [" ".join(split_words(sentence)) for sentence in self.config.evaluate.book_sentences]
        known = {" ".join(split_words(each.source)): each for each in load_references(self.folder, sentences)}
        return {sentence: known[sentence] for sentence in sentences if sentence in known}

    @functools.cached_property
    def cost(self) -> dict[str, float]:
        """Parameters, and the matrix-product FLOPs of one seed's whole training."""
        buckets = split_buckets(self.corpus.splits["train"], self.config.data.batch_tokens)
        epochs = self.config.train.steps / sum(bucket.num_batches for bucket in buckets)
        steps = [describe(self.config, self.programs.model, bucket.batch_size, bucket.length) for bucket in buckets]
        total = sum(step.flops * bucket.num_batches * epochs for step, bucket in zip(steps, buckets, strict=True))
        return {"parameters": steps[0].size, "flops": total}


def open_session(config: ConfigDict, folder: Path) -> Session:
    """A session. Raises UserError, before any work, for a `config.evaluate.combine` that the run cannot give."""
    require_combination(config)
    return Session(config, folder)
