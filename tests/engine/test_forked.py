"""A Python program that runs in a fork finds and leaves what it would in a new process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.record import results

EXITS = [
    "pass",
    "sys.exit()",
    "sys.exit(3)",
    "sys.exit('no data')",
    "raise KeyError('lr')",
    "os._exit(0)",
    "os._exit(4)",
    "os.kill(os.getpid(), signal.SIGKILL)",
    "os.kill(os.getpid(), signal.SIGTERM)",
    "threading.Thread(target=lambda: (time.sleep(0.3), open('late', 'w').close())).start()",
    "atexit.register(lambda: open('at-exit', 'w').close())",
    "sys.stdout.buffer.write(b'{\"loss\": 0.25}\\n') and os._exit(0)",
    "open('kept', 'w').write('the file is not closed')",
    "multiprocessing.get_context('spawn').Process(target=work).start()",
    "logging.getLogger().addHandler(handler)",
    "threading.Thread(target=lambda: (time.sleep(0.3), print(len(pickle.dumps(Own()))))).start()",
    "holds.file.write('of a module')",
]
PROGRAM = """
import argparse, atexit, json, logging.handlers, multiprocessing, os, pickle, random, signal, sys, threading, time
import beside, cuda, holds
class Own:
    pass
def work():
    print("a process that it has started")
handler = logging.handlers.MemoryHandler(9, target=logging.FileHandler("log"), flushOnClose=True)
handler.emit(logging.makeLogRecord({"msg": "line", "levelno": 20}))
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--exit")
    given = parser.parse_args()
    found = {"argv": sys.argv, "path": sys.path, "file": __file__, "spec": str(__spec__), "folder": os.getcwd()}
    found |= {"beside": [beside.__file__, cuda.__file__], "main": sys.modules["__main__"].parser is parser}
    found |= {"input": sys.stdin.read()}
    variables = [name for name in sorted(os.environ) if "TUNER" not in name and "PID" not in name]
    found |= {"variables": {name: os.environ[name] for name in variables}}
    found |= {"no trial": "tuner.spec.script" not in sys.modules or sys.modules["tuner.spec.script"].running() is None}
    found |= {"signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]}
    found |= {"session": os.getsid(0) == os.getpid()}
    with open("found", "w") as file:
        json.dump(found, file, indent=1)
    print(json.dumps({"loss": 0.5}))
    exec(given.exit)
"""


def ran(words, name):
    """What a search of the exits leaves: for each, the trial's end and reports, its output and its files."""
    command = [*words, "--exit", "{exit}"]
    space = f"Space(params={{'exit': tune.grid_search({EXITS})}}, command={command}, metric='loss')"
    Path(f"{name}.py").write_text(f"from tuner import Space, tune\nimport beside\nspace = {space}\n")
    options = "--scheduler", "fifo", "--num-samples", "1", "--max-failures", "0", "--name", name
    subprocess.run([sys.executable, "-m", "tuner.run", "--space", f"{name}.py", *options], capture_output=True)
    found = {}
    for trial in results.load(Path("results", name)).trials:
        folder = Path("results", name, "ray", trial.id)
        files = {each.name: each.read_text() for each in sorted((folder / "files").rglob("*")) if each.is_file()}
        outputs = [(folder / each).read_text() for each in ("stdout", "stderr")]
        text = repr([trial.status, trial.reason, [each.metrics for each in trial.reports], outputs, files])
        text = re.sub(r"tuner-(trial-)?[0-9a-f]{8}|\d{4,}|0x[0-9a-f]+", "*", text)
        text = re.sub(r'( \| )?  File "<frozen runpy>"[^|\n]*(?= \||\n)', "", text.replace("\\n", "\n"))  # of `-m`
        found[trial.config["exit"]] = [line for line in text.splitlines() if line]
    return found


@pytest.mark.parametrize("words", [["program.py"], pytest.param(["-u", "-m", "program"], marks=pytest.mark.slow)])
def test_a_program_ends_as_in_a_process_of_its_own(tmp_path, monkeypatch, words):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").touch()
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").touch()  # hides an installed package
    (tmp_path / "holds.py").write_text("file = open('held', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "lib")
    forked, alone = ran(["python", *words], "forked"), ran(["env", "python", *words], "alone")
    assert list(forked) == list(alone) == EXITS
    assert {each: lines for each, lines in forked.items() if lines != alone[each]} == {}


IMPORTS = """
import random, sys
had = "networkx" in sys.modules
import networkx, numpy, torch, tuner_trial
drawn = {"python": random.random(), "numpy": numpy.random.rand(), "torch": float(torch.rand(()))}
tuner_trial.report({"loss": float(sys.argv[1]), "had": had, **drawn})
tuner_trial.report({"loss": float(sys.argv[1]), "had": had, **drawn})
"""


def test_later_programs_find_what_earlier_ones_have_imported_and_draw_other_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(IMPORTS)
    words = "--param", "x=grid_search(1, 2, 3, 4)", "--scheduler", "fifo", "--max-concurrent-trials", "1"
    command = "--name", "had", "--metric", "loss", "--num-samples", "1", "--", "python", "program.py", "{x}"
    subprocess.run([sys.executable, "-m", "tuner.run", *words, *command], check=True)
    reported = [trial.reports[-1].metrics for trial in results.load(Path("results", "had")).trials]
    assert not reported[0]["had"] and reported[-1]["had"]
    for name in ("python", "numpy", "torch"):
        assert len({metrics[name] for metrics in reported}) == 4, name
