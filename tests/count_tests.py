#!/usr/bin/env python3
"""Counts the cases of a CTest JUnit file. Prints a first line "passed failed skipped", then each failed case with
the lines that give the reason, and one line per reason to skip. The cases of a pytest run or a GoogleTest
executable inside one CTest case count separately."""
import re
import sys
import xml.etree.ElementTree as ElementTree


def why(output):
    """The lines of a failed case that give the reason: lines marked by pytest and GoogleTest, otherwise the last
    ones."""
    lines = output.rstrip().splitlines()
    marked = [i for i, line in enumerate(lines) if re.match(r"E  |FAILED |ERROR |.*: Failure$|.*(AddressSanitizer|runtime error):", line)]
    places = sorted({j for i in marked for j in range(i, i + (4 if lines[i].endswith(": Failure") else 1)) if j < len(lines)})
    return [lines[i][:300] for i in (places or range(max(0, len(lines) - 10), len(lines)))][-25:]


def of_googletest(output):
    """The counts at the end of a GoogleTest executable's output."""
    marks = re.findall(r"^\[  (PASSED|SKIPPED|FAILED) \s?\] (\d+) tests?[.,]", output, re.MULTILINE)
    return {mark.lower(): int(n) for mark, n in marks}


def main():
    cases = ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
    passed = failed = skipped = 0
    failures, reasons = [], {}
    for case in cases:
        status = case.get("status")
        if status == "fail":
            output = case.findtext("system-out") or ""
            counts = of_googletest(output)  # none if it was killed
            failed += max(1, counts.get("failed", 0))
            passed += counts.get("passed", 0)
            skipped += counts.get("skipped", 0)
            failures.append((case.get("name"), why(output)))
        elif status in ("notrun", "disabled"):
            skipped += 1
            mark = case.find("skipped")
            reason = (mark.get("message") if mark is not None else None) or "disabled"
            output = case.findtext("system-out") or ""
            found = re.search(r"skipped: (.*)", output, re.IGNORECASE)
            reason = found.group(1).strip() if found else reason
            reasons.setdefault(reason, []).append(case.get("name"))
        else:
            output = case.findtext("system-out") or ""
            summary = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed|skipped).*) in [\d.]+s", output, re.MULTILINE)
            counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|skipped)", summary[-1])} if summary else {}
            if not summary:
                counts = of_googletest(output)
                for reason in re.findall(r": Skipped\n(.+)", output):
                    reasons.setdefault(reason.strip(), []).append(case.get("name"))
            passed += counts.get("passed", 0 if counts.get("skipped") else 1)
            skipped += counts.get("skipped", 0)
    print(passed, failed, skipped)
    for name, lines in failures:
        print(f"  failed: {name}", *(f"    | {line}" for line in lines), sep="\n")
    for reason, names in sorted(reasons.items()):
        print(f"  skipped, {len(names)}: {reason}")


if __name__ == "__main__":
    main()
