"""scripts/reproduce from its options to its exit code."""
import fcntl
import sys

from quality_runs.programs import note

from . import results
from .benchmarks import LEFT_OUT, chosen
from .book import Book
from .errors import ENVIRONMENT_EXIT, FAILED_EXIT, StepFailed, Stop
from .options import check_inputs, check_programs, check_tasks, default_device, harness_version, parse
from .plan import fitting, runs, verifying
from .steps import Runner, shown


def run(options, benchmarks, absent):
    """The exit code."""
    options.output.mkdir(parents=True, exist_ok=True)
    lock = open(options.output / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Stop(f"{options.output}: another run works in this folder; wait for it, or name another with -o", ENVIRONMENT_EXIT) from None
    planned, runner = runs(options, benchmarks), Runner(options.output, note)
    book = Book(options, benchmarks, planned, absent)
    try:
        for step in fitting(options):  # nothing works without the bundles
            book.did(step, runner.run(step))
        judge = verifying(options)
        try:
            record = runner.run(judge)
            book.did(judge, record)
            book.verify = results.judged(options.output / "verify.json")
            if record["code"] != 0:
                book.failures.append("verify: a check of oscar-verify failed; verify.html says which")
        except (StepFailed, results.Unreadable, KeyError, TypeError) as error:
            book.failures.append(str(error) if isinstance(error, (StepFailed, results.Unreadable)) else
                                 f"verify: {options.output / 'verify.json'} is not the report that was expected (no {error})")
        for one in planned:
            try:
                book.did(one.step, runner.run(one.step))
            except StepFailed as error:
                book.failures.append(str(error))
            book.write()
    except StepFailed as error:
        book.failures.append(str(error))
    failures = book.write()
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    print(options.output / "reproduce.html")
    print(options.output / "reproduce.json")
    return FAILED_EXIT if failures else 0


def main(description, arguments=None):
    options = parse(description, arguments)
    try:
        check_inputs(options)
        options.device = options.device or default_device()
        benchmarks, absent = chosen(options.names, options.ruler_lengths), []
        if not options.dry_run or harness_version() is not None:
            absent = check_tasks(options, benchmarks)
        gone = {title for title, _, _ in absent}
        benchmarks = [b for b in benchmarks if b.title not in gone]
        if options.dry_run:
            for step in (*fitting(options), verifying(options), *(one.step for one in runs(options, benchmarks))):
                print(shown(step))
            for name, paper, reason in (*LEFT_OUT, *absent):
                print(f"# left out: {name} ({paper}): {reason}")
            return 0
        check_programs()
        return run(options, benchmarks, absent)
    except Stop as stop:
        print(f"error: {stop}", file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        print("error: interrupted; the same command goes on", file=sys.stderr)
        return 130
