"""Decoding in CTranslate2, to be measured beside the project's own: the same model, the same sentences, one process.

    echo | python ctranslate2_decode.py --model=FILE.npz --batch=64 --beams=1 --length=20

FILE.npz has the parameters of the project's Transformer by their paths (`encoder_0/self_attention/query`), and beside
them `sources`, ids [sentences, words] without padding, and `heads`. Every translation is forced to `length` words.
Prints a JSON object for every line of standard input: words a second, the median over the repeats of so many seconds,
and the ids of the first sentences' translations.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

PADDING, BEGIN, END = 0, 1, 2


class Weights:
    """The parameters below a path."""

    def __init__(self, arrays, path=""):
        self.arrays, self.path = arrays, path

    def __truediv__(self, name):
        return Weights(self.arrays, f"{self.path}/{name}".lstrip("/"))

    def array(self):
        return self.arrays[self.path].astype(np.float32)


def joined(*parts):
    """Matrices that multiply from the right, side by side, as one that multiplies from the left."""
    return np.ascontiguousarray(np.concatenate([part.array() for part in parts], axis=1).T)


def set_linear(spec, weight, bias=None):
    spec.weight, spec.bias = weight, np.zeros(len(weight), np.float32) if bias is None else bias.array()


def set_norm(spec, weights):
    spec.gamma, spec.beta = (weights / "norm" / "gain").array(), (weights / "norm" / "bias").array()


def set_self_attention(spec, weights, norm):
    set_linear(spec.linear[0], joined(weights / "query", weights / "key", weights / "value"))
    set_linear(spec.linear[1], joined(weights / "out"))
    set_norm(spec.layer_norm, norm)


def set_cross_attention(spec, weights, norm):
    set_linear(spec.linear[0], joined(weights / "query"))
    set_linear(spec.linear[1], joined(weights / "key", weights / "value"))
    set_linear(spec.linear[2], joined(weights / "out"))
    set_norm(spec.layer_norm, norm)


def set_layer(spec, weights):
    norms = [weights / f"residuals_{index}" for index in range(3)]
    set_self_attention(spec.self_attention, weights / "self_attention", norms[0])
    if hasattr(spec, "attention"):
        set_cross_attention(spec.attention, weights / "cross_attention", norms[1])
    for linear, name in ((spec.ffn.linear_0, "hidden"), (spec.ffn.linear_1, "out")):
        dense = weights / "feed_forward" / name
        set_linear(linear, joined(dense / "kernel"), dense / "bias")
    set_norm(spec.ffn.layer_norm, norms[2 if hasattr(spec, "attention") else 1])


def set_stack(spec, weights, kind):
    table = (weights / ("source_embedding" if kind == "encoder" else "target_embedding") / "embedding").array()
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = table
    spec.position_encodings.encodings = sinusoids(512, table.shape[1])
    for index, layer in enumerate(spec.layer):
        set_layer(layer, weights / f"{kind}_{index}")


def sinusoids(length, width):
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width).astype(np.float32)


def convert(arrays, folder):
    """The project's post-norm Transformer as a model of CTranslate2."""
    layers = sum(name.startswith("encoder_") and name.endswith("self_attention/query") for name in arrays)
    spec = transformer_spec.TransformerSpec.from_config(
        num_layers=layers, num_heads=int(arrays["heads"]), pre_norm=False, activation=common_spec.Activation.RELU
    )
    weights = Weights(arrays)
    set_stack(spec.encoder, weights, "encoder")
    set_stack(spec.decoder, weights, "decoder")
    set_linear(spec.decoder.projection, joined(weights / "logits" / "kernel"), weights / "logits" / "bias")
    words = [name_of(index) for index in range(len(spec.decoder.projection.weight))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.optimize()
    spec.save(folder)


def name_of(index):
    """The word of an id, of which CTranslate2 has three with a meaning."""
    return {PADDING: "<unk>", BEGIN: "<s>", END: "</s>"}.get(index, str(index))


def measure(translator, sources, asked):
    """The median of words a second over repeats, and the last translations."""
    options = {"beam_size": asked.beams, "max_decoding_length": asked.length, "min_decoding_length": asked.length}
    rates: list[float] = []
    found, until = [], time.perf_counter() + asked.seconds
    while len(rates) < 3 or time.perf_counter() < until:
        started = time.perf_counter()
        found = translator.translate_batch(sources, max_batch_size=-(-len(sources) // asked.workers), **options)
        rates.append(sum(len(one.hypotheses[0]) for one in found) / (time.perf_counter() - started))
    return statistics.median(rates), found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    for name, default in (("batch", 64), ("beams", 1), ("length", 20), ("threads", 2), ("workers", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, help="threads: of each worker")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    arrays = dict(np.load(asked.model))
    with tempfile.TemporaryDirectory() as folder:
        convert(arrays, folder)
        options = {"compute_type": "float32", "intra_threads": asked.threads, "inter_threads": asked.workers}
        translator = ctranslate2.Translator(folder, device=asked.device, **options)
        sources = [[name_of(index) for index in row] for row in arrays["sources"][: asked.batch].tolist()]
        for _ in sys.stdin:
            rate, found = measure(translator, sources, asked)
            first = [[int(word) for word in one.hypotheses[0]] for one in found[:4]]
            result = {"version": ctranslate2.__version__, "words_per_second": rate, "first": first}
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
