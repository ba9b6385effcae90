"""The maps of one sentence, kept beside a run's result to be drawn."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attention_jax.files import no_link
from attention_jax.tasks.explanation.measuring import Maps
from attention_jax.tasks.explanation.sample import Sample
from attention_jax.tasks.translation.opened import OpenedTranslator

MAPS = "maps.npz"


def kept_maps(maps: Maps, opened: OpenedTranslator, sample: Sample, index: int = 0) -> dict[str, np.ndarray]:
    """The maps of one sentence by measure, the true links as "truth", and its words: "source", "target"."""
    source, target = sample.words(opened, index)
    truth = np.zeros((len(target), len(source)))
    for row, links in zip(truth, sample.alignments[index], strict=True):
        row[list(links)] = 1
    drawn = {name: found[index] for name, found in maps.items()}
    return {"source": np.array(source), "target": np.array(target), "truth": truth, **drawn}


def write_maps(path: Path, models: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write an archive of "MODEL/source", "MODEL/target", "MODEL/truth", "MODEL/attention", …"""
    arrays = {f"{model}/{name}": array for model, kept in models.items() for name, array in kept.items()}
    with open(path, "wb", opener=no_link) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
