"""What the measurements of traffic (vllm/traffic.py, sglang/traffic.py) share: requests of random tokens, and processes that share a card."""
import fcntl
import os
import pathlib
import random
import sys
import time


def requests_of(count, given, made, vocabulary):
    """Prompts of random tokens, and how many tokens answer each."""
    import torch
    chosen, generator = random.Random(count), torch.Generator().manual_seed(count)
    prompts = [torch.randint(100, vocabulary - 1000, (chosen.randint(given // 2, given * 3 // 2),), generator=generator).tolist() for _ in range(count)]
    return prompts, [chosen.randint(made // 2, made * 3 // 2) for _ in prompts]


def longest_request(rows):
    """Tokens that a server is told of: CONTEXT of the environment, or those of the longest request of rows (count, given, made)."""
    return int(os.environ.get("CONTEXT", 0)) or max(2 * given + 2 * made + 64 for _, given, made in rows)


def lives(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Turns:
    """Processes that share a card: all wait for the others, then measure one after another, in rounds, because a host is faster at one time than
    at another. Made when a process starts, so that the others do not wait for one that dies.

    text: FOLDER:N:R, N processes and R rounds, or empty: one of each. FOLDER: a new one for every run. TURNS_WAIT of the environment: the most seconds
    that a process waits (600)."""

    def __init__(self, text):
        folder, _, numbers = text.partition(":")
        self.folder = pathlib.Path(folder) if folder else None
        self.count, self.rounds = (map(int, numbers.split(":")) if folder else (1, 1))
        if folder:
            self.folder.mkdir(exist_ok=True)
            self._touch("begun")
            if len(self._of("begun")) > self.count:
                raise SystemExit(f"TURNS: {self.folder} has files of more than {self.count} processes; name a new folder for every run")

    def _touch(self, name):
        (self.folder / f"{os.getpid()}.{name}").touch()

    def _of(self, name):
        return {file.stem for file in self.folder.glob(f"*.{name}")}

    def _wait(self, name):
        self._touch(name)
        deadline = time.time() + float(os.environ.get("TURNS_WAIT", 600))
        while True:
            there = self._of(name)
            gone = {process for process in self._of("begun") - there if not lives(process)}
            if len(there) + len(gone) >= self.count:
                return
            if time.time() > deadline:
                print(f"TURNS: {len(there)} of {self.count} processes came to {name}; the others may disturb what is measured", file=sys.stderr)
                return
            time.sleep(0.05)

    def __iter__(self):
        """Numbers of rounds; the body of the loop runs while no other process measures."""
        if self.folder is None:
            yield 0
            return
        for number in range(self.rounds):
            self._wait(f"round{number}")
            with (self.folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield number
