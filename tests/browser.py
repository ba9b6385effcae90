"""A real browser, where there is one."""

import html
import json
import re
import shutil
import subprocess

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium")

WATCHED = """
<script>
const said = [];
for (const kind of ["error", "warn", "log"]) console[kind] = (...words) => said.push(words.join(" "));
window.onerror = message => said.push(message);
addEventListener("load", () => {
  const seen = (() => { SCRIPT })();
  const textContent = JSON.stringify({seen, said});
  document.body.append(Object.assign(document.createElement("pre"), {id: "seen", textContent}));
});
</script>
"""


def seen_on(page, folder, script, *flags):
    """What a script returns that runs once the page is there; the page must not have told the console anything."""
    dom = dom_of(page.replace("<head>", "<head>" + WATCHED.replace("SCRIPT", script)), folder, *flags)
    (text,) = re.findall(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    found = json.loads(html.unescape(text))
    assert found["said"] == []
    return found["seen"]


def dom_of(page, folder, *flags):
    """A page's elements once its scripts have run."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    asked = [BROWSER, *quiet, *flags, f"file://{folder / 'page.html'}"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True).stdout
