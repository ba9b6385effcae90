"""Sources of sentence pairs: files of two forms, the embedded corpus, TFDS. Errors name the file and line."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from attention_jax.data.config import DataConfig
from attention_jax.errors import UserError
from attention_jax.stopping import polled

HOW_TO_GET = (
    "Sentence pairs of many languages, one tab-separated pair a line, are at https://www.manythings.org/anki/ "
    "(fra-eng.zip holds fra.txt); then set --config.data.path."
)

PARALLEL = (
    "Parallel files are PATH.{} and PATH.{}, after config.data.languages: set --config.data.path=PATH without the "
    "ending; or set it to their folder, and the files in it by --config.data.train_path, validation_path, test_path."
)
SHOWN = 5  # how many bad lines are named


class Pair(NamedTuple):
    """A sentence and its translation, `where` they are (FILE:LINE), and the source words of each target word."""

    source: str
    target: str
    where: str
    alignment: tuple[tuple[int, ...], ...] | None = None


class BadLines:
    """Lines without a pair: each is an error, or is counted and skipped, as `config.data.on_bad_line` says."""

    def __init__(self, on_bad_line: str):
        if on_bad_line not in ("error", "skip"):
            raise UserError(f"config.data.on_bad_line={on_bad_line!r}: choose 'error' or 'skip'.")
        self._skips = on_bad_line == "skip"
        self.count = 0
        self.first: list[str] = []

    def report(self, where: str, problem: str) -> None:
        if not self._skips:
            raise UserError(f"{where}: {problem}. Fix the line, or set --config.data.on_bad_line=skip.")
        self.count += 1
        if self.count <= SHOWN:
            self.first.append(where)


def read_pairs(config: DataConfig, name: str, bad_lines: BadLines) -> Iterator[Pair]:
    """The pairs of a file or split; `name` is a config's `train_path`, `validation_path` or `test_path`."""
    return polled(READERS[kind_of(config)](config, name, bad_lines))


def kind_of(config: DataConfig) -> str:
    """The source's name in `READERS`: "tfds" of "tfds:ted_hrlr_translate/pt_to_en"."""
    return config.source.partition(":")[0]


def files_of(config: DataConfig) -> list[Path]:
    """The files of a config's pairs; none if the source has no files."""
    names = [config.train_path, *(name for name in (config.validation_path, config.test_path) if name)]
    endings = {"tsv": [""], "parallel": [f".{language}" for language in config.languages]}.get(kind_of(config), [])
    return [Path(f"{_file(config, name)}{ending}") for name in names for ending in endings]


def require_files(config: DataConfig) -> list[Path]:
    """The files of a config's pairs. Raises UserError if one is missing or empty."""
    advice = PARALLEL.format(*config.languages) if kind_of(config) == "parallel" else HOW_TO_GET
    for path in (files := files_of(config)):
        require_file(path, advice)
    return files


def read_tsv(path: Path, bad_lines: BadLines) -> Iterator[Pair]:
    """`source<TAB>target` a line; further columns (attribution) are ignored."""
    for where, line in _lines(path, bad_lines):
        if line is None:
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            problem = "no tab between source and target" if line.strip() else "a blank line"
            bad_lines.report(where, problem)
        elif not columns[0].strip() or not columns[1].strip():
            bad_lines.report(where, "an empty sentence beside the tab")
        else:
            yield Pair(columns[0], columns[1], where)


def read_parallel(path: Path, languages: tuple[str, str], bad_lines: BadLines) -> Iterator[Pair]:
    """Line n of PATH.source translates to line n of PATH.target."""
    files = [Path(f"{path}.{language}") for language in languages]  # `path` is what their names share
    for file in files:
        require_file(file, PARALLEL.format(*languages))
    counts = [_count_lines(file) for file in files]
    if counts[0] != counts[1]:
        raise UserError(
            f"{files[0]} has {counts[0]:,} lines and {files[1]} {counts[1]:,}: line n of one must translate line n of "
            "the other. Mend the shorter file."
        )
    for sides in zip(*(_lines(file, bad_lines) for file in files), strict=True):
        (where, source), (_, target) = sides
        empty = [where for where, text in sides if text is not None and not text.strip()]
        if source is not None and target is not None and not empty:
            yield Pair(source, target, where)
        elif empty:
            bad_lines.report(empty[0], "an empty sentence")


def _lines(path: Path, bad_lines: BadLines) -> Iterator[tuple[str, str | None]]:
    require_file(path)
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path}:{number}"
            try:
                yield where, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                bad_lines.report(where, f"not UTF-8 (byte {error.start + 1} of the line is 0x{raw[error.start]:02x})")
                yield where, None


def _count_lines(path: Path) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def require_file(path: Path, advice: str = HOW_TO_GET) -> None:
    """Raise UserError if there is no file, or an empty one."""
    if path.is_dir():
        raise UserError(f"{path}: a folder, and a file is needed. Name the file in it with --config.data.path.")
    if not path.is_file():
        raise UserError(f"{path}: no such file. {advice}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty. {advice}")


def _read_embedded(config: DataConfig, name: str, bad_lines: BadLines) -> Iterator[Pair]:
    from attention_jax.data.grammar import sentence_pairs

    del name, bad_lines
    return sentence_pairs(config.seed)


def _read_tfds(config: DataConfig, name: str, bad_lines: BadLines) -> Iterator[Pair]:
    from attention_jax.data.tfds import read_tfds

    return read_tfds(config.source.partition(":")[2], config.path, name or "train", config.languages, bad_lines)


def at_home(name: str) -> Path:
    """The path of a name, ~ resolved. Raises UserError for a user without a home, as in a container."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UserError(f"{name}: this user has no home: name the whole path, or set HOME.") from None


def _file(config: DataConfig, name: str) -> Path:
    """The file of a name: if `train_path` is set, `path` is the folder of all files; else it is the file itself."""
    folder = at_home(config.path) if config.train_path else Path()
    return folder / at_home(name or config.path)


READERS = {
    "embedded": _read_embedded,
    "tsv": lambda config, name, bad_lines: read_tsv(_file(config, name), bad_lines),
    "parallel": lambda config, name, bad_lines: read_parallel(_file(config, name), config.languages, bad_lines),
    "tfds": _read_tfds,
}
