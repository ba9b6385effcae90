"""The page of heads: it has what was handed over, and a browser reads it, switches heads, and runs nothing else."""

import json
import re

import numpy as np
import pytest
from browser import needs_browser, seen_on

from attention_jax.reports.heads_page import HeadMaps, Written, heads_page

SOURCE = ["the", "</script><script>document.title='ran'</script>", "cat"]
TARGET = ["le", "chat", "<b>noir</b>", "&amp;"]
WHOLE = Written(TARGET, [0.9, 0.8, 0.7, 0.6])


def maps_of(kind="cross", layers=2, heads=3, **changed):
    weights = np.random.default_rng(0).dirichlet(np.ones(len(SOURCE)), (layers, heads, len(TARGET)))
    without = [
        [Written([*TARGET[:1], f"mot {layer} {head}", *TARGET[1:]], [0.5] * 5) for head in range(heads)]
        for layer in range(layers)
    ]
    losses = np.arange(layers * heads).reshape(layers, heads) / 10
    return HeadMaps(kind, "What is looked at.", TARGET, SOURCE, weights, without, losses)._replace(**changed)


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_page_has_every_weight_word_and_output():
    maps = maps_of()
    data = data_of(heads_page("Heads", WHOLE, [maps, maps_of("decoder", 1, 1)]))
    assert data["whole"] == {"words": TARGET, "probabilities": [0.9, 0.8, 0.7, 0.6]}
    first, second = data["kinds"]
    assert (first["queries"], first["keys"], second["kind"]) == (TARGET, SOURCE, "decoder")
    assert np.allclose(first["weights"], maps.weights, atol=1e-4)
    assert np.allclose(first["losses"], maps.losses)
    assert first["without"][1][2]["words"] == ["le", "mot 1 2", "chat", "<b>noir</b>", "&amp;"]


def test_the_words_that_others_stand_for_are_marked():
    data = data_of(heads_page("Heads", WHOLE, [maps_of()]))
    assert data["kinds"][0]["without"][0][0]["changed"] == [False, True, False, False, False]
    same = [[WHOLE] * 3] * 2
    data = data_of(heads_page("Heads", WHOLE, [maps_of(without=same)]))
    assert data["kinds"][0]["without"][1][1]["changed"] == [False] * 4


def test_nothing_is_loaded_and_no_word_is_markup():
    page = heads_page("<i>Heads</i>", WHOLE, [maps_of()], said=["a < b"])
    assert "<i>" not in page
    assert "a &lt; b" in page
    assert page.count("<script") == 2
    assert not re.findall(r"(?:src|href)=|https?://|@import", page)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"keys": SOURCE[:2]}, r"weights of cross: \(2, 3, 4, 3\) are not .* of 4 queries and 2 keys"),
        ({"losses": np.zeros((2, 2))}, "cross: losses and without need 3 heads in each of 2 layers"),
        ({"without": [[WHOLE] * 3]}, "cross: losses and without need 3 heads in each of 2 layers"),
        ({"without": [[Written(TARGET, [0.5])] * 3] * 2}, "4 words have 1 probabilities"),
    ],
)
def test_what_does_not_fit_together_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        heads_page("Heads", WHOLE, [maps_of(**changed)])


CLICKS = """
  const heads = [...document.querySelectorAll("button")];
  const written = id => [...document.querySelectorAll(`#${id} span`)].map(span => span.textContent).join("|");
  const pressed = () => heads.map(head => head.getAttribute("aria-pressed") === "true" ? 1 : 0).join("");
  const seen = [written("whole"), pressed(), written("without")];
  heads[4].click(); seen.push(pressed(), written("without"), document.querySelectorAll(".changed").length);
  heads[0].click(); seen.push(pressed(), written("without"));
  heads[0].click(); seen.push(pressed(), written("without"));
  const box = heads[5].querySelector("canvas").getBoundingClientRect();
  const at = {clientX: box.left + box.width * 0.5, clientY: box.top + box.height * 0.9, bubbles: true};
  heads[5].dispatchEvent(new PointerEvent("pointermove", at));
  return [...seen, document.getElementById("where").textContent, written("looked"), document.title];
"""


@needs_browser
def test_a_click_switches_a_head_off_and_pointing_reads_a_weight(tmp_path):
    maps = maps_of()
    written, all_on, nothing, off, without, changed, other, of_other, on, gone, where, looked, title = seen_on(
        heads_page("Heads", WHOLE, [maps]), tmp_path, CLICKS
    )
    assert written == "|".join(TARGET)
    assert (all_on, nothing) == ("111111", "")
    assert (off, without, changed) == ("111101", "le|mot 1 1|chat|<b>noir</b>|&amp;", 1)
    assert (other, of_other) == ("011111", "le|mot 0 0|chat|<b>noir</b>|&amp;")
    assert (on, gone) == ("111111", "")
    assert where == f"cross, layer 2, head 3: &amp; → {SOURCE[1]}: {round(float(maps.weights[1, 2, 3, 1]), 4)}"
    assert looked == "|".join(SOURCE)
    assert title == "Heads"
