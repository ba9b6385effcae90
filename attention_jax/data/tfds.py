"""TFDS data sets of translations and of texts, read and written without TensorFlow, as array_record files.

--config=configs/nmt.py:MODEL,tfds --config.data.source=tfds:ted_hrlr_translate/pt_to_en
--config.data.languages="('pt','en')" --config.data.path=WHERE_TFDS_KEEPS_ITS_DATA
"""

import contextlib
import difflib
import importlib
import itertools
import logging
import pkgutil
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attention_jax.data.sources import BadLines, Pair, at_home
from attention_jax.errors import UserError
from attention_jax.files import read_json

VERSION = "1.0.0"
EXAMPLES_A_SHARD, EXAMPLES_AT_ONCE = 1_000_000, 10_000
READ_AT_ONCE = 128  # faster than one by one; not more, because an example may be a whole book


def read_tfds(name: str, folder: str, split: str, languages: tuple[str, str], bad_lines: BadLines) -> Iterator[Pair]:
    """The pairs of a split ("train", "train[:10%]") of a data set, which is prepared first if it is not.

    `folder` is where TFDS keeps its data; "" is its default. Raises UserError for an unknown data set, split or
    language, and for files that have to be downloaded and cannot be.
    """
    builder = _builder(name, folder, "translate")
    if not set(languages) <= set(builder.info.features):
        has = ", ".join(builder.info.features)
        raise UserError(f"config.data.languages={languages}: tfds:{name} has {has}. Choose two of them.")
    examples = _examples(builder, name, split)
    for index, example in enumerate(_in_order(examples, name)):
        where = f"tfds:{name} {split} {index}"
        try:
            source, target = (_text(example[language]) for language in languages)
        except UnicodeDecodeError:
            bad_lines.report(where, "not UTF-8")
            continue
        if source.strip() and target.strip():
            yield Pair(source, target, where)
        else:
            bad_lines.report(where, "an empty sentence")


def read_tfds_text(name: str, folder: str, split: str, key: str) -> Iterator[str]:
    """The text under `key` of every example of a split; the arguments are as in `read_tfds`.

    Raises UserError for an unknown data set, split or key, and for a key without text.
    """
    builder = _builder(name, folder, "text")
    features = builder.info.features
    texts = [feature for feature in features if _is_text(features[feature])]
    if key not in texts:
        has = f"has text in {', '.join(texts)}" if texts else f"has no text, but {', '.join(features)}"
        raise UserError(f"config.data.key={key!r}: tfds:{name} {has}. Choose another.")
    examples = _examples(builder, name, split)
    for index, example in enumerate(_in_order(examples, name)):
        try:
            yield _text(example[key])
        except UnicodeDecodeError as error:
            raise UserError(
                f"tfds:{name} {split} {index}: byte {error.start} is not UTF-8. Mend the data set."
            ) from None


def write_tfds(
    folder: Path, name: str, languages: tuple[str, str], splits: Mapping[str, Callable[[], Iterable[Pair]]]
) -> None:
    """Write pairs as the TFDS data set `name` in `folder`, in their order and few at once; `tfds.builder` finds it."""
    import tensorflow_datasets as tfds

    home = folder / name / VERSION
    home.mkdir(parents=True)
    identity = tfds.core.dataset_info.DatasetIdentity(
        name=name, version=tfds.core.Version(VERSION), data_dir=home, module_name=__name__
    )
    features = tfds.features.Translation(languages=languages)
    info = tfds.core.DatasetInfo(builder=identity, features=features, supervised_keys=languages)
    writer = tfds.core.SequentialWriter(info, EXAMPLES_A_SHARD, file_format="array_record")
    writer.initialize_splits(list(splits))
    for split, pairs in splits.items():
        examples = (dict(zip(languages, (pair.source, pair.target), strict=True)) for pair in pairs())
        while some := list(itertools.islice(examples, EXAMPLES_AT_ONCE)):
            writer.add_examples({split: some})
    writer.close_all()


def _builder(name: str, folder: str, group: str) -> Any:
    import tensorflow_datasets as tfds

    logging.getLogger("absl").setLevel(logging.ERROR)  # its warning that a data set is not prepared: `_prepare` does
    data_dir = str(at_home(folder)) if folder else None
    _require_own_features(name, Path(data_dir or tfds.core.constants.DATA_DIR).expanduser())
    importlib.import_module(f"tensorflow_datasets.{group}")  # without it TFDS does not know WMT's
    try:
        return tfds.builder(name, data_dir=data_dir, try_gcs=False, file_format="array_record")
    except Exception as error:  # protobuf and TFDS each have their own for files that are damaged
        if not isinstance(error, ValueError):
            raise _unreadable(name, error) from None
        near = ", ".join(_nearest(name, data_dir, group))
        raise UserError(f"config.data.source=tfds:{name}: no such data set. The nearest are {near}.") from None


def _require_own_features(name: str, root: Path) -> None:
    """Raise UserError where a prepared data set names features that are not TFDS's own: TFDS imports what it is told.

    The files of a data set may be a stranger's.
    """
    if ".." in name.split("/") or name.startswith("/"):
        raise UserError(f"config.data.source=tfds:{name}: not the name of a data set.")
    for path in (root / name.partition(":")[0]).glob("**/features.json"):
        try:
            classes = [*_classes(read_json(path.read_bytes()))]
        except (RecursionError, ValueError) as error:
            raise _unreadable(name, error) from None
        if other := [one for one in classes if not str(one).startswith("tensorflow_datasets.core.features.")]:
            raise UserError(f"{path}: names {other[0]!r}, which is no feature of TFDS: nothing else is imported.")


def _classes(found: Any) -> Iterator[Any]:
    """Every class that a features.json names."""
    if isinstance(found, dict):
        yield from (value for key, value in found.items() if key in ("pythonClassName", "python_class_name", "type"))
    for part in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from _classes(part)


def _unreadable(name: str, error: Exception) -> UserError:
    why = (" ".join(str(error).split()) or type(error).__name__)[:200]
    return UserError(f"tfds:{name} cannot be read ({why}). Prepare it as array_record, in another folder.")


def _nearest(name: str, data_dir: str | None, group: str) -> list[str]:
    """Data sets that a name may have meant, of those prepared in `data_dir` and of one group of TFDS ("translate")."""
    import tensorflow_datasets as tfds

    there = importlib.import_module(f"tensorflow_datasets.{group}").__path__
    modules = tuple(module.name for module in pkgutil.iter_modules(there))
    builders = tfds.list_builders(with_community_datasets=False)
    data_set = name.partition("/")[0]
    if data_set in builders:
        configs = [f"{data_set}/{config}" for config in tfds.builder_cls(data_set).builder_configs]
        return difflib.get_close_matches(name, configs, cutoff=0.5) or configs
    prepared = Path(data_dir).glob("*/*/dataset_info.json") if data_dir else ()
    of_group = [builder for builder in builders if builder.startswith(modules)]
    known = list(dict.fromkeys([*(path.parent.parent.name for path in prepared), *of_group]))
    alike = [other for other in known if data_set in other or other in data_set]
    return alike or difflib.get_close_matches(data_set, known, cutoff=0.5) or known


def _examples(builder: Any, name: str, split: str) -> Any:
    try:
        return builder.as_data_source(split)
    except (AssertionError, KeyError, ValueError, NotImplementedError) as error:
        if not builder.is_prepared():
            _prepare(builder, name)
            return _examples(builder, name, split)
        if split.partition("[")[0] not in builder.info.splits:
            raise UserError(
                f"config.data: tfds:{name} has no split {split!r}, but {', '.join(builder.info.splits)}. Name one with "
                "train_path, validation_path or test_path."
            ) from None
        raise _unreadable(name, error) from None


def _in_order(examples: Any, name: str) -> Iterator[Any]:
    """The examples, a few read at once. Raises UserError where the files of the data set are damaged."""
    first = 0
    while True:
        try:
            some = examples.__getitems__(range(first, min(first + READ_AT_ONCE, len(examples))))
        except Exception as error:  # array_record raises RuntimeError, a decoder whatever it likes
            raise _unreadable(name, error) from None
        if not some:
            return
        yield from some
        first += READ_AT_ONCE


def _prepare(builder: Any, name: str) -> None:
    """Download and prepare a data set. Raises UserError, saying what to download by hand, if that cannot be done."""
    import tensorflow_datasets as tfds

    manual = Path(builder.data_dir_root) / "downloads" / "manual"
    urls = [url for url in _downloads(builder) if not (manual / Path(urllib.parse.urlparse(url).path).name).exists()]
    fetch = f"Download {', '.join(urls)} into {manual}, or copy" if urls else "Copy"
    advice = f"{fetch} a prepared {name} into {builder.data_dir_root}; then start again."
    if not all(_is_reachable(url) for url in urls):
        raise UserError(f"tfds:{name} is not prepared, and there is no network to prepare it. {advice}")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(
                file_format="array_record", download_config=tfds.download.DownloadConfig(manual_dir=manual)
            )
    except Exception as error:  # a builder may fail in any way; the advice is the same
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"tfds:{name} could not be prepared ({why}). {advice}") from None


class _Recorder:
    """Replaces a download manager: it records the addresses that it is asked for, and downloads nothing."""

    def __init__(self):
        self.asked: list[str] = []

    def download_and_extract(self, urls):
        import jax

        self.asked += [str(getattr(leaf, "url", leaf)) for leaf in jax.tree.leaves(urls)]
        return jax.tree.map(lambda url: Path("not_downloaded"), urls)

    download = download_and_extract


def _downloads(builder: Any) -> list[str]:
    recorder = _Recorder()
    with contextlib.suppress(Exception):  # without files a builder may fail, after it has asked for them
        builder._split_generators(recorder)
    return list(dict.fromkeys(recorder.asked))


def _is_reachable(url: str) -> bool:
    if urllib.request.getproxies().keys() - {"no"}:
        return True  # the proxy knows
    try:
        socket.getaddrinfo(urllib.parse.urlparse(url).hostname, None)
    except OSError:
        return False
    return True


def _is_text(feature: Any) -> bool:
    return getattr(feature, "shape", None) == () and feature.np_dtype == np.dtype(object)


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""
