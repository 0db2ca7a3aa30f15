"""The end of a command: one line on stderr that names the fix, and an exit code (CONTRACT C). Never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Any

import click

from taskharbor.cli.output import safe
from taskharbor.cli.words import as_word
from taskharbor.cli.wrapping import wrapped
from taskharbor.core.urls import without_passwords
from taskharbor.errors import CapabilityMissing, ConfigError, DriverError, HarborError, InvalidJob

FINE, BAD, USAGE, UNREACHABLE = 0, 1, 2, 3


def exit_code(error: HarborError) -> int:
    """The exit code for an error."""
    if isinstance(error, ConfigError | InvalidJob | CapabilityMissing):
        return USAGE
    return UNREACHABLE if isinstance(error, DriverError) else BAD


def complain(message: str) -> None:
    """Print one line to stderr, with passwords redacted, wrapped at words in a terminal, but not within a command."""
    line = safe(f"taskharbor: {without_passwords(' '.join(message.split()))}")
    if sys.stderr.isatty():
        line = wrapped(line, get_terminal_size().columns)
    click.echo(line, err=True)


class Commands(click.Group):
    """A group whose commands turn every error into a line and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and leave the process with its exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(USAGE)
        except click.UsageError as error:
            complain(_with_hint(error))
            sys.exit(USAGE)
        except click.ClickException as error:
            complain(error.format_message())
            sys.exit(error.exit_code)
        except HarborError as error:
            complain(str(error))
            sys.exit(exit_code(error))
        except OSError as error:
            complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
            sys.exit(BAD)
        except click.Abort:
            complain("stopped")
            sys.exit(BAD)
        sys.exit(code if isinstance(code, int) else FINE)


def _with_hint(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and (word := as_word(error)) is not None:
        message = f"No such option '{error.option_name}': write it as a word, {word}"
    return message if error.ctx is None else f"{message} (see `{error.ctx.command_path} --help`)"
