"""Tries every decoder with as many inputs as there is time for: ``make fuzz SECONDS=60``.

With the package `atheris` inputs are chosen by the code that they reach; without it they
are chosen by chance, from the same corpus. Each decoder runs in a process of its own with
limited memory, so that one that takes all of it, hangs or crashes is a finding as well.
What is of interest is kept in ``build/fuzz``; with ``--keep`` the smallest input of each
outcome goes into ``tests/fuzz/corpus``, and a finding belongs there with its repair.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "fuzz"
MEMORY = 4 << 30
PATIENCE_S = 300.0
SAVE_EVERY_S = 0.5
MOST_KEPT = 24
MOST_KEPT_BYTES = 2048
sys.path.insert(0, str(HERE.parent / "support"))


class Tally:
    """Counts what came, and writes it down now and then: the process may not live to its end."""

    def __init__(self, target, file):
        self.target, self.file = target, file
        self.inputs, self.outcomes, self.findings = 0, set(), []
        self.saved = 0.0

    def take(self, data):
        from fuzzing import Finding, outcome

        self.inputs += 1
        try:
            self.outcomes.add(outcome(self.target, data))
        except Finding as found:
            self._keep(data, str(found))
        if time.monotonic() - self.saved > SAVE_EVERY_S:
            self.save()

    def _keep(self, data, text):
        if len(self.findings) < 20:
            path = self.file.parent / f"finding-{len(self.findings)}"
            path.write_bytes(data)
            self.findings.append({"input": str(path), "text": text[:600]})
            self.save()

    def save(self):
        self.saved = time.monotonic()
        said = {"inputs": self.inputs, "outcomes": len(self.outcomes), "findings": self.findings}
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(said))
        part.replace(self.file)


def fuzz_one(name, seconds, file):
    """Runs in the process of one decoder."""
    guided = importlib.util.find_spec("atheris") is not None
    if guided:
        import atheris

        with atheris.instrument_imports(include=["disco_client", "disco_server"]):
            from fuzzing import TARGETS
    else:
        from fuzzing import TARGETS
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    counters = Tally(TARGETS[name], file)
    corpus = counters.target.corpus()
    if not guided:
        from fuzzing.mutating import mutate

        chance, until = random.Random(), time.monotonic() + seconds
        for data in corpus:
            counters.take(data)
        while time.monotonic() < until:
            counters.take(mutate(chance, corpus))
        counters.save()
        return
    folder = file.parent / "corpus"
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(corpus):
        (folder / f"seed-{number}").write_bytes(data)
    options = [
        *(f"-max_total_time={seconds}", "-max_len=8192", "-timeout=20", "-verbosity=0"),
        *(f"-rss_limit_mb={MEMORY >> 20}", f"-artifact_prefix={file.parent}/", str(folder)),
    ]
    atheris.Setup([sys.argv[0], *options], counters.take)
    atheris.Fuzz()


def keep(name):
    """Adds the smallest input of each outcome that the corpus does not have."""
    from fuzzing import TARGETS, Finding, outcome
    from fuzzing.target import CORPUS

    target = TARGETS[name]
    known = {outcome(target, data) for data in target.corpus()}
    for file in sorted((BUILD / name / "corpus").glob("*"), key=lambda file: file.stat().st_size):
        data = file.read_bytes()
        if len(data) > MOST_KEPT_BYTES or len(known) >= MOST_KEPT:
            return
        try:
            came = outcome(target, data)
        except Finding:
            continue
        if came not in known:
            known.add(came)
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            (CORPUS / name / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def run(names, seconds):
    """Runs decoders one after the other, and prints a line for each; whether all held."""
    guided = importlib.util.find_spec("atheris") is not None
    print(f"inputs are chosen by {'the code they reach (atheris)' if guided else 'chance'}\n")
    print(f"{'decoder':16} {'inputs':>10} {'outcomes':>9} {'findings':>9}")
    good = True
    for name in names:
        folder = BUILD / name
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "counters.json"
        file.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--one", name, "--seconds", str(seconds)]
        log = folder / "log"
        with log.open("wb") as out:
            try:
                code = subprocess.run(
                    command, stdout=out, stderr=out, timeout=seconds + PATIENCE_S, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                code = "a process that did not end"
        said = json.loads(file.read_text()) if file.exists() else {}
        findings = said.get("findings", [])
        if code:
            findings.append({"input": str(log), "text": f"ended with {code}"})
        print(
            f"{name:16} {said.get('inputs', 0):>10,} {said.get('outcomes', 0):>9} "
            f"{len(findings):>9}",
            flush=True,
        )
        for found in findings:
            good = False
            print(f"    {found['input']}\n    {found['text']}")
    return good


def main():
    from fuzzing import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder")
    parser.add_argument("--only", action="append", choices=list(TARGETS), help="repeatable")
    parser.add_argument("--keep", action="store_true", help="add to the corpus of the tests")
    given = parser.parse_args()
    names = given.only or list(TARGETS)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    good = run(names, given.seconds)
    if given.keep:
        for name in names:
            keep(name)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    if "--one" in sys.argv:
        # Before anything is imported, so that it can be watched.
        _, _, chosen, _, time_limit = sys.argv
        fuzz_one(chosen, int(time_limit), BUILD / chosen / "counters.json")
    else:
        main()
