"""Write docs/reference.md: the public names with their signatures and the first paragraphs of their docstrings.

`python scripts/reference.py` rewrites the file; `--check` only says whether it is up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
NEEDS = [
    "Need",
    "VerbStep",
    "Look",
    "Keys",
    "Owned",
    "KeptUntil",
    "Members",
    "Payloads",
    "NamedSchedules",
    "StoredEdge",
]
STEPS = {
    "enqueue": ["enqueue"],
    "forget": ["delete", "free_workflow_key", "prune"],
    "lease": ["claim", "extend", "is_claimable", "is_unwanted"],
    "replay": ["replay"],
    "reschedule": ["reschedule"],
    "settle": ["settle"],
    "stop": ["cancel", "dead_letter", "sweep"],
    "swap": ["swap_schedules"],
}
# Sections: a title, the module to import from, and its names (all that it exports if none are listed).
SECTIONS: list[tuple[str, str, list[str]]] = [
    ("Applications", "taskharbor", []),
    ("Parts of a `JobRecord`", "taskharbor.core.job", ["Failure", "Lease", "Progress"]),
    ("Errors", "taskharbor.errors", []),
    ("Tasks of agents", "taskharbor.manager", ["TaskManager", "Task", "TaskStatus"]),
    ("A running worker: `harbor.worker()`", "taskharbor.worker.launcher", ["RunningWorker"]),
    ("Operators: `harbor.admin`", "taskharbor.admin.admin", ["Admin"]),
    ("`harbor.admin.jobs`", "taskharbor.admin.jobs", ["Jobs", "BulkOptions", "Bulk", "Why"]),
    ("`harbor.admin.dlq`", "taskharbor.admin.dead_letters", ["DeadLetters", "Replayed", "Purged"]),
    ("`harbor.admin.queues`", "taskharbor.admin.queues", ["Queues"]),
    ("`harbor.admin.workers`", "taskharbor.admin.stats", ["Workers"]),
    ("`harbor.admin.stats()`", "taskharbor.admin.stats", ["Stats"]),
    ("`harbor.admin.recurring`", "taskharbor.admin.recurring", ["Recurring", "RecurringTask"]),
    ("`harbor.admin.workflows`", "taskharbor.admin.workflows", ["Workflows", "Workflow", "GraphNode"]),
    ("Options of jobs: `task.using(…)`", "taskharbor.client.options", ["JobOptions"]),
    ("Options of flows: `flow.using(…)`", "taskharbor.workflows.plan", ["FlowOptions"]),
    ("Options of recurring tasks", "taskharbor.client.declaration", ["RecurringOptions"]),
    ("Driver authors: the seam", "taskharbor.driver", []),
    ("Driver authors: jobs", "taskharbor.core.job", ["Dependency", "NewJob"]),
    ("Driver authors: outcomes", "taskharbor.core.transition", ["Transition", "Ack", "Cancel", "Fail", "PutBack"]),
    ("Driver authors: states", "taskharbor.core.states", ["TERMINAL", "Shown", "State"]),
    ("Driver authors: states as shown", "taskharbor.core.shown", ["due_since", "shown"]),
    ("Driver authors: filters", "taskharbor.core.filter", ["Filter"]),
    ("Driver authors: keys", "taskharbor.core.keys", ["KeyRecord"]),
    ("Driver authors: order", "taskharbor.core.line", ["effective_due", "shares"]),
    ("Driver authors: queues", "taskharbor.core.reserved", ["in_line", "is_news"]),
    ("Driver authors: leases", "taskharbor.core.lease", ["check_duration", "refusal", "settle_verdict"]),
    ("Driver authors: totals", "taskharbor.core.tally", ["added", "tallies"]),
    ("Driver authors: the draft of a step", "taskharbor.core.steps.draft", ["Draft"]),
    ("Driver authors: the needs of steps", "taskharbor.core.steps.needs", NEEDS),
    *((f"Steps: `{name}`", f"taskharbor.core.steps.{name}", steps) for name, steps in STEPS.items()),
    ("Opening stores", "taskharbor.drivers", ["from_url"]),
    ("Tests", "taskharbor.testing", []),
    ("Histories", "taskharbor.testing.recorder", ["Recorder", "take_stock"]),
    ("Judging histories", "taskharbor.testing.check", []),
    ("The conformance kit", "taskharbor.testing.kit", []),
    ("The simulation", "taskharbor.testing.simulation", []),
]
# The modules to import from; what else is listed comes from their objects.
IMPORTED = {
    "taskharbor",
    "taskharbor.core.filter",
    "taskharbor.core.job",
    "taskharbor.core.keys",
    "taskharbor.core.lease",
    "taskharbor.core.line",
    "taskharbor.core.reserved",
    "taskharbor.core.shown",
    "taskharbor.core.states",
    "taskharbor.core.steps.draft",
    "taskharbor.core.steps.needs",
    "taskharbor.core.tally",
    "taskharbor.core.transition",
    *(f"taskharbor.core.steps.{name}" for name in STEPS),
    "taskharbor.driver",
    "taskharbor.drivers",
    "taskharbor.errors",
    "taskharbor.manager",
    "taskharbor.testing",
    "taskharbor.testing.check",
    "taskharbor.testing.kit",
    "taskharbor.testing.recorder",
    "taskharbor.testing.simulation",
}
HEAD = """# Reference

The public names of TaskHarbor. What is listed here is stable; everything else is internal and may change at any time.
A coroutine and its blocking twin share a line and take the same arguments: `aenqueue` is awaited, `enqueue` blocks.

This page is written by `scripts/reference.py` from the code.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, home, names in SECTIONS:
        module = import_module(home)
        parts.append(f"## {title}\n" + (f"\n`from {home} import …`\n" if home in IMPORTED else ""))
        for name in names or exported(module):
            parts.append("\n".join(entry(name, getattr(module, name), made=home in IMPORTED)) + "\n")
    return "\n".join([*parts, "## Types in signatures\n", *aliases("".join(parts)), ""])


def aliases(text: str) -> Iterator[str]:
    """The types that the signatures in a text call by a name of their own, as they are defined."""
    words = set(re.findall(r"\b[A-Z]\w+", " ".join(re.findall(r"`[^`]+`", text))))
    modules = [module for name, module in sys.modules.items() if name.startswith("taskharbor.")]
    found = [(name, module) for module in modules for name in words & vars(module).keys() if is_alias(module, name)]
    yield from sorted({f"- `{name}`: `{spelled(vars(module)[name])}`" for name, module in found})


def is_alias(module: ModuleType, name: str) -> bool:
    """Whether a module calls a type by this name without making a class of it."""
    return get_origin(vars(module)[name]) is not None and "~" not in str(vars(module)[name])


def spelled(value: Any) -> str:
    """A type as it is written in the code."""
    if get_origin(value) in (Union, UnionType):
        return " | ".join(map(spelled, get_args(value)))
    return value.__name__ if isinstance(value, type) and get_origin(value) is None else plain(str(value))


def exported(module: ModuleType) -> list[str]:
    """The exports of a module: `__all__`, or the classes that it defines."""
    listed: list[str] | None = getattr(module, "__all__", None)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return listed or [name for name in own if isinstance(getattr(module, name), type)]


def entry(name: str, value: Any, *, made: bool) -> Iterator[str]:
    """The lines about one public name; a class that users make by hand has its constructor, too."""
    if not isinstance(value, type):
        is_function = callable(value) and get_origin(value) is None  # aliases of types can be called, too
        yield f"### `{name}{signature(value)}`\n\n{first_line(value)}" if is_function else f"### `{name}`"
        return
    if issubclass(value, BaseException):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"### `{name}({bases})`\n\n{first_line(value)}"
        return
    yield f"### `{name}`\n\n{first_line(value)}\n"
    if name not in WHOLE:
        yield from members(value, made=made and name not in GIVEN)


def members(kind: type, *, made: bool) -> Iterator[str]:
    """The lines about what a class offers: fields, constructor, properties and methods."""
    if issubclass(kind, Enum):
        yield f"- values: {', '.join(f'`{each.value}`' for each in kind)}"
        return
    if issubclass(kind, Struct):
        yield from (f"- `{each}`" for each in struct_fields(kind))
    elif hasattr(kind, "__required_keys__"):
        yield from (f"- `{name}: {plain(annotation)}`" for name, annotation in typed_dict(kind).items())
    elif made and "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False):
        yield f"- `{kind.__name__}{signature(kind)}`"
    found = dict(inspect.getmembers_static(kind))
    for name, value in found.items():
        if not name.startswith("_") and name not in HIDDEN and is_ours(kind, name) and f"a{name}" not in found:
            yield from member(name, value, has_twin=name[0] == "a" and name[1:] in found)


# What other modules of the package use.
HIDDEN = {"beginnings", "client", "edited", "following", "gives", "joining", "lay", "outcome", "portal"}
HIDDEN |= {"registered", "returns"}
WHOLE = {"BlockingKit", "DriverKit", "EphemeralKit", "OwnTransactionKit", "WithinKit"}  # their members are test cases
GIVEN = {"Run"}  # got from others, never made by hand


def is_ours(kind: type, name: str) -> bool:
    """Whether a class of this package defines the member; not the fields of structs and typed dicts."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    is_field = issubclass(kind, Struct) and name in kind.__struct_fields__
    return owner.__module__.startswith("taskharbor") and not is_field


def typed_dict(kind: type) -> dict[str, str]:
    """The keys of a typed dict and of those that it extends, with their types."""
    found: dict[str, Any] = kind.__annotations__
    return {name: getattr(value, "__forward_arg__", value) for name, value in found.items()}


def member(name: str, value: Any, *, has_twin: bool) -> Iterator[str]:
    """The line about a property or a method; a coroutine and its blocking twin share one."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not first_line(function):
        return
    if isinstance(value, property | cached_property):
        yield f"- `{name}`: {first_line(function)}"
    elif inspect.isroutine(function):
        shown = f"`{name[1:]}`, `{name}" if has_twin else f"`{name}"
        yield f"- {shown}{signature(function, bound=True)}`: {first_line(function)}"


def struct_fields(kind: type[Struct]) -> Iterator[str]:
    """The fields of a record with their types, and their defaults if they have one."""
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    for name in names:
        if not name.startswith("_"):
            yield written(name, annotation_of(kind, name), given.get(name, NODEFAULT))


def annotation_of(kind: type, name: str) -> object:
    """The annotation of a field as it is written in the code."""
    return next(
        vars(each)["__annotations__"][name] for each in kind.__mro__ if name in vars(each).get("__annotations__", {})
    )


def signature(function: Any, *, bound: bool = False) -> str:
    """The signature as it is written in the code."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(…)"
    given = [each for each in found.parameters.values() if not (bound and each.name in ("self", "cls"))]
    parts: list[str] = []
    for number, each in enumerate(given):
        before = given[number - 1].kind if number else None
        if before is each.POSITIONAL_ONLY and each.kind is not before:
            parts.append("/")
        if each.kind is each.KEYWORD_ONLY and before not in (each.KEYWORD_ONLY, each.VAR_POSITIONAL):
            parts.append("*")
        stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        parts.append(stars + written(each.name, each.annotation, each.default))
    returns = "" if found.return_annotation in (inspect.Signature.empty, "None") else plain(found.return_annotation)
    return f"({', '.join(parts)})" + (f" -> {returns}" if returns and not isinstance(function, type) else "")


def written(name: str, annotation: object, default: object) -> str:
    """A parameter or a field as it is written in the code."""
    text = name if annotation is inspect.Parameter.empty else f"{name}: {plain(annotation)}"
    if default in (inspect.Parameter.empty, NODEFAULT):
        return text
    shown = "..." if default is ... else repr(default)
    return f"{text} = {'…' if ' at 0x' in shown or shown.startswith('<') else shown}"


def plain(annotation: object) -> str:
    """An annotation without the names of modules."""
    if (parts := getattr(annotation, "__args__", None)) is not None and type(None) in parts:
        return " | ".join(plain("None" if each is type(None) else each) for each in parts)
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)


def first_line(value: Any) -> str:
    """The first paragraph of a docstring, as one line."""
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split())


def main() -> int:
    """Write or check the page."""
    wanted = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
            print("docs/reference.md is out of date: run python scripts/reference.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
