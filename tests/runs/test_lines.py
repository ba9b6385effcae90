"""Lines from standard input: each as it is typed, and a stop that is heard while the next is waited for."""

import signal
import subprocess
import sys

import pytest
from support import ROOT

READ = """
from attention_jax.launcher.messages import guarded
from attention_jax.runs.lines import read_lines
guarded(lambda argv: [print(line.strip(), flush=True) for line in read_lines("-")], [])
"""


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_is_heard_while_a_line_is_waited_for(how, status):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", READ], cwd=ROOT, text=True, **pipes) as reader:
        reader.stdin.write("one\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "one\n"
        reader.send_signal(how)
        assert reader.wait(timeout=10) == status  # sooner than what notices nothing is ended
        assert "stopped" in reader.stderr.read()
