"""The launcher, which says in a file what it does at every moment: phases.py FOLDER FLAGS…

A thread looks at where the others stand, every few milliseconds, and writes the phase to FOLDER/PID.
"""

import os
import sys
import threading
import time
from pathlib import Path

EVERY = 0.005  # seconds
# The phases, and where in the code each is: the end of a file's path, and a function of it ("": any).
PLACES = {
    "saving": (("training/storage.py", "write"), ("training/storage.py", "_finish")),
    "awaiting workers": (("sweeps/engines.py", "_watch"),),
    "importing data": (("data/digests.py", "import_once"),),
    "evaluating": (("training/loop.py", "_log_all"),),
    "decoding": (
        ("tasks/translation/translating.py", "translate"),
        ("tasks/translation/translating.py", "translate_n_best"),
        ("tasks/language_model/generating.py", "blocks"),
    ),
    "compiling": (("training/compiling.py", "compiled"), ("_src/stages.py", "lower"), ("_src/pjit.py", "lower")),
    "restoring": (("training/checkpoints.py", "_each"), ("training/checkpoints.py", "restore_best")),
    "training": (("training/loop.py", "_train_to"),),
    "reporting": (("launcher/modes.py", "_write_report"), ("sweeps/answer.py", "write_answer")),
    "measuring": (("translation/measuring.py", ""), ("language_model/measuring.py", "")),
}
STARTING, OPENING = "importing Python", "opening, or between"
PHASES = (STARTING, OPENING, *PLACES)


def phase_of(frames):
    """The phase of a process whose threads stand at these frames: the first of `PLACES` that one of them is in."""
    places = set()
    for frame in frames:
        while frame is not None:
            places.add((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
    for phase, known in PLACES.items():
        if any(file.endswith(end) and function in (name, "") for end, function in known for file, name in places):
            return phase
    return OPENING if any(file.endswith("launcher/modes.py") for file, _ in places) else STARTING


def tell(folder):
    """Write this process's phase to a file, for as long as it lives."""
    own, last = threading.get_ident(), ""
    file = os.open(folder / str(os.getpid()), os.O_CREAT | os.O_WRONLY)
    while True:
        phase = phase_of([frame for thread, frame in sys._current_frames().items() if thread != own])
        if phase != last:
            os.pwrite(file, f"{phase:<40}".encode(), 0)
            last = phase
        time.sleep(EVERY)


def main():
    folder = Path(sys.argv.pop(1))
    threading.Thread(target=tell, args=(folder,), daemon=True).start()
    from attention_jax.launcher.__main__ import main as launch

    launch((sys.executable, str(Path(__file__).resolve()), str(folder)))


if __name__ == "__main__":
    main()
