"""How the command ends, as the toolchain's commands have it (docs/command-line.md)."""
FAILED_EXIT, INPUT_EXIT, ENVIRONMENT_EXIT = 1, 3, 4


class Stop(Exception):
    """One sentence, and the exit code."""

    def __init__(self, sentence, code=INPUT_EXIT):
        super().__init__(sentence)
        self.code = code


class StepFailed(Exception):
    """A step's command ended with an error; the sentence names its log."""
