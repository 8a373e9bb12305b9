"""Runs one job of a workflow for GitHub Actions on this machine: its `run` steps for real, with the variables and files of a runner,
and the few actions that docs/ci/workflow.yml uses as operations on folders."""
import re
import shutil
import subprocess


def here(script, environment, folder):
    """The command that runs a script: what a runner does in an image, whose shell is sh."""
    return subprocess.run(["sh", "-e", script], cwd=folder, env=environment, capture_output=True, text=True)


class Job:
    """One run of a job in the folder `workspace`. `cache` is the folder of cached files, which outlives the run; `variables` replace
    those of the job; `execute` is as here(). Afterwards: outcomes {step: success, failure or skipped}, artifacts {name: set of files},
    summary (text), messages {step: output}, ok."""

    def __init__(self, job, workspace, cache, variables, execute=here):
        self.workspace, self.cache, self.execute = workspace, cache, execute
        self.environment = {**job.get("env", {}), **variables}
        self.outcomes, self.artifacts, self.messages, self.outputs = {}, {}, {}, {}
        self.summary, self.ok = "", True
        for step in job["steps"]:
            name = step.get("name", step.get("uses"))
            if not self.holds(step.get("if", "success()")):
                self.outcomes[name] = "skipped"
                continue
            fine = self.run(name, step) if "run" in step else self.act(step)
            self.outcomes[name] = "success" if fine else "failure"
            self.ok = self.ok and fine

    def holds(self, condition):
        """always(), success(), outputs of steps, texts, !=, ==, &&."""
        known = {"always()": True, "success()": self.ok}

        def value(term):
            term = term.strip()
            if term in known:
                return known[term]
            if re.fullmatch(r"'[^']*'", term):
                return term[1:-1]
            return self.output(term)

        def comparison(term):
            sides = re.split(r"(!=|==)", term)
            if len(sides) == 1:
                return bool(value(term))
            return (value(sides[0]) == value(sides[2])) == (sides[1] == "==")

        terms = [comparison(term) for term in condition.split("&&")]
        # A condition that does not name a status holds only while nothing failed.
        return all(terms) and (self.ok or "always()" in condition)

    def output(self, term):
        step, name = re.fullmatch(r"steps\.([\w-]+)\.outputs\.([\w-]+)", term).groups()
        return self.outputs.get(step, {}).get(name, "")

    def filled_in(self, text):
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: self.output(found[1]), text)

    def run(self, name, step):
        files = self.workspace / ".runner"
        files.mkdir(exist_ok=True)
        script, output, summary = (files / part for part in ("step.sh", "output", "summary"))
        script.write_text(self.filled_in(step["run"]))
        output.write_text(""), summary.write_text("")
        environment = {**self.environment, "CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(output),
                       "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_WORKSPACE": str(self.workspace)}
        done = self.execute(script, environment, self.workspace)
        self.messages[name] = done.stdout + done.stderr
        self.outputs[step.get("id")] = dict(line.split("=", 1) for line in output.read_text().splitlines())
        self.summary += summary.read_text()
        return done.returncode == 0

    def act(self, step):
        action = step["uses"].split("@")[0]
        settings = {key: self.filled_in(value) for key, value in step.get("with", {}).items()}
        if action in ("actions/cache/restore", "actions/cache/save"):
            file, kept = self.workspace / settings["path"], self.cache / settings["key"]
            source, target = (kept, file) if action.endswith("restore") else (file, kept)
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            self.outputs[step.get("id")] = {"cache-hit": "true" if source.is_file() else ""}
        elif action == "actions/upload-artifact":
            paths = [self.workspace / path for path in settings["path"].split()]
            found = {file for path in paths for file in [path, *path.rglob("*")] if file.is_file()}
            self.artifacts[settings["name"]] = {str(file.relative_to(self.workspace)) for file in found}
        else:
            assert action == "actions/checkout", f"the action {action} is not known here"
        return True
