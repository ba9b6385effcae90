"""Configs and files of small texts."""

import json

from attention_jax.data.config import TextConfig

BASE = TextConfig(
    source="text",
    path="",
    train_path="",
    validation_path="",
    test_path="",
    held_out=0.1,
    held_out_test=0.0,
    key="text",
    tokenizer="characters",
    vocabulary=400,
    seed=0,
)
DOCUMENTS = [f"Document {i}:\n{'é wörd ' * (i % 13)}\n\tthe end of {i}.\n" for i in range(60)]


def write_jsonl(path, documents, key="text"):
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in documents), encoding="utf-8")
    return str(path)


def write_folder(folder, documents):
    folder.mkdir()
    for index, text in enumerate(documents):
        (folder / f"{index:03}.txt").write_bytes(text.encode())
    return str(folder)


def decoded(text, name):
    """A split's documents as text, without their ends."""
    split = text.splits[name]
    pairs = zip(split.documents[:-1], split.documents[1:], strict=True)
    return [text.tokenizer.decode(split.tokens[start:end]) for start, end in pairs]
