"""A real browser, where there is one."""

import shutil
import subprocess

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium")


def dom_of(page, folder, *flags):
    """A page's elements once its scripts have run."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    asked = [BROWSER, *quiet, *flags, f"file://{folder / 'page.html'}"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True).stdout
