"""Translation data sets of TFDS, read and written without TensorFlow: prepared once as array_record files.

--config=configs/nmt.py:MODEL,tfds --config.data.source=tfds:ted_hrlr_translate/pt_to_en
--config.data.languages="('pt','en')" --config.data.path=WHERE_TFDS_KEEPS_ITS_DATA
"""

import contextlib
import difflib
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attention_jax.data.sources import BadLines, Pair
from attention_jax.errors import UserError

VERSION = "1.0.0"


def read_tfds(name: str, folder: str, split: str, languages: tuple[str, str], bad_lines: BadLines) -> Iterator[Pair]:
    """The pairs of a split ("train", "train[:10%]") of a data set, prepared first where it is not yet.

    `folder` is where TFDS keeps its data; "" is its default. Raises UserError for a data set, split or language that
    is not there, and where its files have to be downloaded and cannot be.
    """
    builder = _builder(name, folder)
    if not set(languages) <= set(builder.info.features):
        has = ", ".join(builder.info.features)
        raise UserError(f"config.data.languages={languages}: tfds:{name} has {has}.")
    examples = _examples(builder, name, split)
    for place, example in enumerate(map(examples.__getitem__, range(len(examples)))):
        where = f"tfds:{name} {split} {place}"
        try:
            source, target = (_text(example[language]) for language in languages)
        except UnicodeDecodeError:
            bad_lines.report(where, "not UTF-8")
            continue
        if source.strip() and target.strip():
            yield Pair(source, target, where)
        else:
            bad_lines.report(where, "an empty sentence")


def write_tfds(
    folder: Path, name: str, languages: tuple[str, str], splits: Mapping[str, Callable[[], Iterable[Pair]]]
) -> None:
    """Prepare pairs as the TFDS data set `name` in `folder`, in their order; `tfds.builder` finds it there."""
    import tensorflow_datasets as tfds

    class Pairs(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        """Sentence pairs of files."""

        def __init__(self):
            self.name, self.VERSION = name, tfds.core.Version(VERSION)
            super().__init__(data_dir=folder, file_format="array_record")

        def _info(self):
            features = tfds.features.Translation(languages=languages)
            return tfds.core.DatasetInfo(
                builder=self, features=features, supervised_keys=languages, disable_shuffling=True
            )

        def _split_generators(self, dl_manager):
            del dl_manager
            return {split: self._generate_examples(pairs()) for split, pairs in splits.items()}

        def _generate_examples(self, pairs):
            for place, pair in enumerate(pairs):
                yield place, dict(zip(languages, (pair.source, pair.target), strict=True))

    with contextlib.redirect_stdout(sys.stderr):  # what TFDS tells is not a result
        Pairs().download_and_prepare()


def _builder(name: str, folder: str) -> Any:
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate

    data_dir = str(Path(folder).expanduser()) if folder else None
    try:
        return tfds.builder(name, data_dir=data_dir, try_gcs=False, file_format="array_record")
    except ValueError:
        data_set = name.partition("/")[0]
        known = tfds.list_builders(with_community_datasets=False)
        configs = tfds.builder_cls(data_set).builder_configs if data_set in known else ()
        prepared = Path(data_dir).glob("*/*/dataset_info.json") if data_dir else ()
        local = [path.parent.parent.name for path in prepared]
        known = [f"{data_set}/{config}" for config in configs] or [*local, *known]
        near = difflib.get_close_matches(name, known, cutoff=0.5) or known[:5]
        raise UserError(
            f"config.data.source=tfds:{name}: no such data set. The nearest are {', '.join(near)}."
        ) from None


def _examples(builder: Any, name: str, split: str) -> Any:
    try:
        return builder.as_data_source(split)
    except (AssertionError, KeyError, ValueError, NotImplementedError) as error:
        if not builder.is_prepared():
            _prepare(builder, name)
            return _examples(builder, name, split)
        if split.partition("[")[0] not in builder.info.splits:
            raise UserError(f"tfds:{name} has no split {split!r}, but {', '.join(builder.info.splits)}.") from None
        raise UserError(
            f"tfds:{name} cannot be read ({error}). Prepare it as array_record, in another folder."
        ) from None


def _prepare(builder: Any, name: str) -> None:
    """Download and prepare; say at once what to fetch where the network cannot."""
    import tensorflow_datasets as tfds

    manual = Path(builder.data_dir_root) / "downloads" / "manual"
    urls = [url for url in _downloads(builder) if not (manual / Path(urllib.parse.urlparse(url).path).name).exists()]
    if not all(_is_reachable(url) for url in urls):
        raise UserError(
            f"tfds:{name} is not prepared in {builder.data_dir_root}, and there is no network to prepare it. "
            f"Download {', '.join(urls)} into {manual}, or copy a prepared {name} there; then start again."
        )
    try:
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(
                file_format="array_record", download_config=tfds.download.DownloadConfig(manual_dir=manual)
            )
    except OSError as error:
        raise UserError(f"tfds:{name} could not be downloaded ({error}).") from None


class _Asked(Exception):
    """The addresses that a builder wanted to download first."""


class _Recorder:
    """Stands in for a download manager, and stops at the first thing asked of it."""

    def download_and_extract(self, urls):
        raise _Asked(urls)

    download = download_and_extract


def _downloads(builder: Any) -> list[str]:
    import jax

    try:
        builder._split_generators(_Recorder())
    except _Asked as asked:
        found = [getattr(leaf, "url", leaf) for leaf in jax.tree.leaves(asked.args[0])]
        return list(dict.fromkeys(str(url) for url in found))
    except AttributeError:  # it asks for something else first: let it try
        return []
    return []


def _is_reachable(url: str) -> bool:
    if urllib.request.getproxies():
        return True  # the proxy knows
    try:
        socket.getaddrinfo(urllib.parse.urlparse(url).hostname, None)
    except OSError:
        return False
    return True


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
