"""The page in a real browser, where there is one: a click sorts, numbers by value, and the console stays silent."""

import re
import shutil
import subprocess

import pytest

from attention_jax.reports.page import Table, render

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CLICKS = """
<script>
const said = [];
for (const kind of ["error", "warn", "log"]) console[kind] = (...words) => said.push(words.join(" "));
window.onerror = message => said.push(message);
addEventListener("load", () => {
  const shown = () => [...document.querySelectorAll("tbody tr")].map(row => row.cells[0].textContent).join("");
  const orders = [shown()];
  for (const column of COLUMNS) { document.querySelectorAll("th")[column].click(); orders.push(shown()); }
  document.body.append(Object.assign(document.createElement("pre"), {id: "seen", textContent: orders + "|" + said}));
});
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium")
def test_a_click_on_a_heading_sorts_and_another_sorts_the_other_way(tmp_path):
    rows = [("a", 10.0, "x"), ("b", 9.5, ""), ("c", 1e-7, "y"), ("d", "", "w"), ("e", 100.0, "z")]
    page = render("Sorting", [Table("table", ("name", "value", "word"), rows)], [], "")
    clicks = CLICKS.replace("COLUMNS", "[1, 1, 2, 0]")
    (tmp_path / "page.html").write_text(page.replace("</head>", f"{clicks}</head>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    asked = [BROWSER, *flags, f"file://{tmp_path / 'page.html'}"]
    dom = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True).stdout
    orders, said = re.search(r'<pre id="seen">(.*?)\|(.*?)</pre>', dom, re.DOTALL).groups()
    assert orders.split(",") == ["abcde", "cbaed", "eabcd", "daceb", "abcde"]
    assert said == ""
