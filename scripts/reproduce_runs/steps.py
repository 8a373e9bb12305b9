"""One step of a run: a command whose outputs are kept. A step is done when the record beside its log says that this command
ended well on these inputs, and its outputs are there. What is done is not done again."""
import dataclasses
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import time

from .errors import StepFailed


@dataclasses.dataclass
class Step:
    name: str                 # also of its files: letters, digits, "-", "." and "/"
    command: list             # of strings
    outputs: list             # paths that it makes
    inputs: list = dataclasses.field(default_factory=list)       # files and folders that other steps or the user made
    scratch: list = dataclasses.field(default_factory=list)      # paths that an interrupted run goes on from
    environment: dict = dataclasses.field(default_factory=dict)  # beside that of this process
    allowed: tuple = (0,)     # exit codes after which the outputs count


def shown(step):
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in step.environment.items()), shlex.join(step.command)])


def mark(path):
    """What tells one state of an input from another: the content of a small file or of a bundle's manifest, else size and time."""
    path = pathlib.Path(path)
    if path.is_dir():
        path = path / "oscar_bundle.json" if (path / "oscar_bundle.json").is_file() else path
    if path.is_file() and path.stat().st_size <= 16 << 20:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if not path.is_file():
        return ""
    return f"{path.stat().st_size} bytes of {path.stat().st_mtime_ns}"


def remove(paths):
    for path in map(pathlib.Path, paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class Runner:
    """Steps in one folder, of which records and logs are in `steps`."""

    def __init__(self, folder, say):
        self.folder, self.say = pathlib.Path(folder) / "steps", say

    def _file(self, step, ending):
        return self.folder / f"{step.name}.{ending}"

    def record(self, step):
        """What is known of the last run of this step: {} when it never ended."""
        try:
            found = json.loads(self._file(step, "json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _asked(self, step):
        return {"command": step.command, "environment": step.environment, "inputs": {str(p): mark(p) for p in step.inputs}}

    def done(self, step):
        found = self.record(step)
        same = all(found.get(k) == v for k, v in self._asked(step).items())
        return same and found.get("code") in step.allowed and all(os.path.exists(p) for p in step.outputs)

    def run(self, step):
        """Runs it unless it is done; returns its record. StepFailed names the log and its last line."""
        if self.done(step):
            self.say(f"{step.name}: done before")
            return self.record(step)
        asked, started, found = self._asked(step), self._file(step, "started.json"), None
        if started.is_file():
            found = json.loads(started.read_text(encoding="utf-8"))
        remove(step.outputs)
        if found != asked:  # what an interrupted run has left is of another command
            remove(step.scratch)
        for path in (*step.outputs, *step.scratch, started):
            pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file(step, "json").unlink(missing_ok=True)
        started.write_text(json.dumps(asked), encoding="utf-8")
        self.say(f"{step.name}: {shown(step)}")
        log, begin = self._file(step, "log"), time.time()
        with open(log, "wb") as file:
            try:
                code = subprocess.run(step.command, env={**os.environ, **step.environment}, stdin=subprocess.DEVNULL, stdout=file,
                                      stderr=subprocess.STDOUT, check=False).returncode
            except OSError as error:
                raise StepFailed(f"{step.name}: {step.command[0]} cannot be run ({error})") from None
        record = {**asked, "code": code, "seconds": round(time.time() - begin, 1)}
        missing = [str(p) for p in step.outputs if not os.path.exists(p)]
        if code not in step.allowed or missing:
            reason = f"ended with {code}" if code not in step.allowed else f"wrote no {missing[0]}"
            raise StepFailed(f"{step.name}: the command {reason}; {log} ends with: {last_line(log)}")
        self._file(step, "json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        return record


def last_line(path):
    """Of a log, without control characters."""
    lines = [line.strip() for line in pathlib.Path(path).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    text = lines[-1] if lines else "(nothing)"
    return "".join(c if c.isprintable() else "?" for c in text)[:300]
