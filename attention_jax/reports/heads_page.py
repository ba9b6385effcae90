"""A page of heads: every map of one sentence side by side, read by pointing, and what is written without each head.

One HTML file that needs no server and no network. Everything on it was computed before.
"""

import base64
import difflib
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attention_jax.reports.page import POLICY

DIGITS = 4  # of a weight


class Written(NamedTuple):
    """The words that a model writes, or that it is given to write, and the probability that it gives each."""

    words: Sequence[str]
    probabilities: Sequence[float]


class HeadMaps(NamedTuple):
    """A kind of attention: what it is called and is, its words, every head's weights, and what happens without it.

    `without` has layers, and in each its heads: what is written when that head alone is removed. `losses` are how much
    the loss rises then, nats a token.
    """

    kind: str
    caption: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights: Float[np.ndarray, "layers heads queries keys"]
    without: Sequence[Sequence[Written]]
    losses: Float[np.ndarray, "layers heads"]


TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  :root { color-scheme: light dark; --ink: #222; --faint: #5c5c5c; --line: #ddd; --back: #fff; --block: #f6f6f6;
    --map: 0, 90, 170; --lost: 200, 70, 0; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e4e4e4; --faint: #a8a8a8; --line: #444; --back: #1b1b1d; --block: #27272a;
      --map: 110, 190, 255; --lost: 255, 150, 80; }
  }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem 6rem;
    color: var(--ink); background: var(--back); }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .2rem; }
  p { max-width: 56rem; margin: .4rem 0; color: var(--faint); }
  .written { position: sticky; top: 0; background: var(--back); padding: .5rem 0; border-bottom: 1px solid var(--line);
    z-index: 1; }
  .words { display: flex; flex-wrap: wrap; gap: .15rem .3rem; align-items: baseline; min-height: 2rem; }
  .words b { font-weight: 400; color: var(--faint); min-width: 15rem; }
  .words span { padding: 0 .3rem; border-radius: 4px; } .words .changed { outline: 2px solid rgb(var(--lost)); }
  .scroll { overflow-x: auto; }
  .layer { display: flex; gap: .5rem; margin: .3rem 0; } .layer > b { font-weight: 400; color: var(--faint);
    width: 4rem; flex: none; align-self: center; }
  button { font: inherit; font-size: .8rem; color: var(--ink); background: var(--block); border: 1px solid var(--line);
    border-radius: 6px; padding: .3rem; cursor: pointer; text-align: left; }
  button[aria-pressed=false] { outline: 2px solid rgb(var(--lost)); }
  button[aria-pressed=false] canvas { opacity: .25; }
  button:focus-visible { outline: 2px solid rgb(var(--map)); }
  canvas { display: block; image-rendering: pixelated; background: var(--back); }
  .read { position: fixed; bottom: 0; left: 0; right: 0; padding: .4rem 1rem; background: var(--block);
    border-top: 1px solid var(--line); } .read .words { flex-wrap: nowrap; overflow-x: auto; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for line in said %}<p>{{ line }}</p>
{% endfor %}<p>Point at a map to read its weights: a row is a word that looks, a column a word that is looked at. A
click switches the head off, the next on again; below each is how much the loss rises without it, in nats a token.</p>
<div class="written"><div class="words" id="whole"></div><div class="words" id="without"></div></div>
<main></main>
<div class="read"><div id="where">&nbsp;</div><div class="words" id="looked"></div></div>
<script type="application/json" id="data">{{ data }}</script>
<script>{{ script }}</script>
</body>
</html>
"""
SCRIPT = """
const found = JSON.parse(document.getElementById("data").textContent);
const byId = name => document.getElementById(name);
const made = (name, text, parent) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
};
let colour = "";
const shade = share => `rgba(${colour}, ${share})`;

// What a word of white space alone is shown as: a language model reads and writes such.
const BLANKS = {" ": "␣", "\\n": "⏎", "\\t": "⇥"};
const shown = word => word.trim() ? word : word.replace(/[ \\n\\t]/g, blank => BLANKS[blank]);

// A line of words, each as dark as it is likely or looked at.
const line = (place, title, words, shares, says, changed) => {
  place.replaceChildren();
  made("b", title, place);
  words.forEach((word, index) => {
    const span = made("span", shown(word), place);
    span.style.background = shade(shares[index] * 0.6);
    span.title = says(shares[index]);
    if (changed && changed[index]) span.className = "changed";
  });
};
const likely = share => `probability ${share}`;
const showWhole = () => line(byId("whole"), "with every head", found.whole.words, found.whole.probabilities, likely);
const showWithout = (name, written) => {
  if (written) line(byId("without"), name, written.words, written.probabilities, likely, written.changed);
  else byId("without").replaceChildren(made("b", "switch a head off"));
};

const draw = (canvas, weights) => {
  const [rows, columns] = [weights.length, weights[0].length];
  const size = Math.max(2, Math.min(12, Math.floor(120 / Math.max(rows, columns))));
  canvas.width = columns * size;
  canvas.height = rows * size;
  const context = canvas.getContext("2d");
  weights.forEach((row, y) => row.forEach((weight, x) => {
    context.fillStyle = shade(weight);
    context.fillRect(x * size, y * size, size, size);
  }));
};

// Where a map is pointed at, the words that this row looks at.
const read = (event, canvas, kind, weights, name) => {
  const box = canvas.getBoundingClientRect();
  const place = (at, from, length, count) => Math.max(0, Math.min(count - 1, Math.floor((at - from) / length * count)));
  const y = place(event.clientY, box.top, box.height, kind.queries.length);
  const x = place(event.clientX, box.left, box.width, kind.keys.length);
  const [query, key] = [shown(kind.queries[y]), shown(kind.keys[x])];
  byId("where").textContent = `${kind.kind}, ${name}: ${query} → ${key}: ${weights[y][x]}`;
  line(byId("looked"), query, kind.keys, weights[y], weight => `weight ${weight}`);
};

let off = null;
const press = (button, name, written) => {
  if (off) off.setAttribute("aria-pressed", "true");
  off = off === button ? null : button;
  if (off) off.setAttribute("aria-pressed", "false");
  showWithout(name, off && written);
};

const canvases = [];
const addHead = (row, kind, layer, head) => {
  const [weights, written, loss] = [kind.weights, kind.without, kind.losses].map(all => all[layer][head]);
  const name = `layer ${layer + 1}, head ${head + 1}`;
  const button = made("button", undefined, row);
  const canvas = made("canvas", undefined, button);
  canvases.push([canvas, weights]);
  made("div", `head ${head + 1}: ${loss < 0 ? "−" : "+"}${Math.abs(loss)}`, button);
  button.setAttribute("aria-label", `${kind.kind}, ${name}`);
  button.addEventListener("pointermove", event => read(event, canvas, kind, weights, name));
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => press(button, `without ${kind.kind} ${name}`, written));
};
for (const kind of found.kinds) {
  const main = document.querySelector("main");
  made("h2", kind.kind, main);
  made("p", kind.caption, main);
  const scroll = made("div", undefined, main);
  scroll.className = "scroll";
  kind.weights.forEach((heads, layer) => {
    const row = made("div", undefined, scroll);
    row.className = "layer";
    made("b", `layer ${layer + 1}`, row);
    heads.forEach((_, head) => addHead(row, kind, layer, head));
  });
}
const paint = () => {
  colour = getComputedStyle(document.documentElement).getPropertyValue("--map");
  showWhole();
  canvases.forEach(pair => draw(...pair));
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
paint();
showWithout("", null);
"""


def heads_page(title: str, whole: Written, kinds: Sequence[HeadMaps], said: Sequence[str] = ()) -> str:
    """The page as text: what is written with every head, and each kind's maps by layer and head.

    Raises ValueError where weights or outputs are not as many as the words or heads.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    data = {"whole": _written(whole), "kinds": [_maps(maps, whole) for maps in kinds]}
    kept = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")  # no word ends the script
    return (
        Environment(autoescape=True)
        .from_string(TEMPLATE)
        .render(
            title=title,
            said=said,
            data=Markup(kept),
            script=Markup(SCRIPT),
            policy=POLICY.format(base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode("ascii")),
        )
    )


def _maps(maps: HeadMaps, whole: Written) -> dict[str, Any]:
    weights = np.asarray(maps.weights, np.float64)
    if weights.ndim != 4 or weights.shape[2:] != (len(maps.queries), len(maps.keys)):
        words = f"{len(maps.queries)} queries and {len(maps.keys)} keys"
        raise ValueError(f"weights of {maps.kind}: {weights.shape} are not [layers, heads, queries, keys] of {words}.")
    layers, heads = weights.shape[:2]
    if np.shape(maps.losses) != (layers, heads) or [len(row) for row in maps.without] != [heads] * layers:
        raise ValueError(f"{maps.kind}: losses and without need {heads} heads in each of {layers} layers.")
    return {
        "kind": maps.kind,
        "caption": maps.caption,
        "queries": list(maps.queries),
        "keys": list(maps.keys),
        "weights": np.round(weights, DIGITS).tolist(),
        "without": [[_compared(one, whole) for one in row] for row in maps.without],
        "losses": [[round(loss, DIGITS - 1) for loss in row] for row in np.asarray(maps.losses, np.float64).tolist()],
    }


def _compared(written: Written, whole: Written) -> dict[str, Any]:
    """What is written without a head, and which of its words are not those written with every head."""
    same = difflib.SequenceMatcher(None, list(whole.words), list(written.words), autojunk=False).get_matching_blocks()
    kept = {block.b + index for block in same for index in range(block.size)}
    return {**_written(written), "changed": [index not in kept for index in range(len(written.words))]}


def _written(written: Written) -> dict[str, Any]:
    if len(written.words) != len(written.probabilities):
        raise ValueError(f"{len(written.words)} words have {len(written.probabilities)} probabilities.")
    return {
        "words": list(written.words),
        "probabilities": np.round(np.asarray(written.probabilities, np.float64), DIGITS).tolist(),
    }
