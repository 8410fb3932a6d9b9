"""Command lines of the programs: `--flag=value`, `--flag value`, one dash or two, and `--flag` alone for a boolean.

A flag that is not known is warned about and left out, its value included: drivers pass flags that not every language has.
A value that cannot be read ends the program with exit code 2.
"""

import sys
from types import SimpleNamespace

TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def parse(arguments, defaults):
    """The values of `defaults` (name to default, whose type is the flag's), changed by `arguments`."""
    values = dict(defaults)
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("-"):
            print(f"{name}: expected a flag, ignored", file=sys.stderr)
            continue
        name = name.lstrip("-")
        known = name in defaults
        if not equals and rest and takes_next(known, defaults.get(name), rest[0]):
            value, equals = rest.pop(0), "="
        if not known:
            print(f"--{name}: unknown flag, ignored", file=sys.stderr)
        elif isinstance(defaults[name], bool) and not equals:
            values[name] = True
        else:
            values[name] = read(name, value, type(defaults[name]))
    return SimpleNamespace(**values)


def takes_next(known, default, following):
    """Whether the argument after a flag without `=` is its value."""
    if isinstance(default, bool):
        return following.lower() in TRUTHS
    return known or not following.startswith("-")


def read(name, value, kind):
    try:
        return TRUTHS[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
        fail(f"--{name}: expected a value of type {kind.__name__}, found {value!r}")


def fail(message):
    """Ends the program: its command line is wrong."""
    print(message, file=sys.stderr)
    sys.exit(2)
