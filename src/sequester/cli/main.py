"""The `sequester` command: finds the verb, runs it, turns refusals into exit codes."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path

import click

from sequester import __version__
from sequester.core.errors import SequesterError
from sequester.core.files import WRITING

# Verb → module; a verb's module is imported only when it is used, so `--help` starts fast.
VERBS = {
    "audit": "Attack a finished run and compare what is found with its claim.",
    "calibrate": "Solve for the noise multiplier that meets a target ε.",
    "demo": "Train on an embedded data set with a person-level guarantee, in under a minute.",
    "doctor": "Check a study against the known pitfalls.",
    "epsilon": "What a noise multiplier, sampling rate and number of steps amount to.",
    "explain": "Say in words and a picture what a guarantee means for one person.",
    "federate": "Train across sites or phones without pooling the data (simulated).",
    "flower": "Write the Flower app of a study, to train it on real machines.",
    "inspect": "Look at people's records before training: counts, gaps, how identifying they are.",
    "ledger": "Create, show, verify, export or raise the budgets of a ledger.",
    "plan": "Plan secure aggregation: graph, threshold, word width, bytes, ε.",
    "report": "Write the card of a run again.",
    "train": "Train a study centrally under person-level DP-SGD.",
}


class LazyVerbs(click.Group):
    """A group whose commands live in `sequester.cli.<verb>` as `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs whose file is there, in alphabetical order."""
        return [verb for verb in sorted(VERBS) if _exists(verb)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module; None for an unknown verb."""
        if cmd_name not in VERBS or not _exists(cmd_name):
            return None
        module = importlib.import_module(f"sequester.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any of them."""
        with formatter.section("Commands"):
            if verbs := self.list_commands(ctx):
                formatter.write_dl([(verb, VERBS[verb]) for verb in verbs])


def _exists(verb: str) -> bool:
    return importlib.util.find_spec(f"sequester.cli.{verb}") is not None


@click.group(cls=LazyVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Train models on people's sequences with a guarantee about the person."""


def main() -> None:
    """Run the command line; exit 0 done, 2 bad input, 3 refused, 4 audit failed, 1 other.

    A verb that a signal stopped exits with 128 and its number, as shells do: 130 or 143.
    A crash shows where and of what kind, not its message (`SEQUESTER_TRACEBACK=1` shows all).
    """
    try:
        # Without its standalone mode click returns the code of `ctx.exit(code)`.
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as mistake:
        mistake.show()
        sys.exit(mistake.exit_code)
    except SequesterError as refusal:
        click.echo(str(refusal), err=True)
        sys.exit(refusal.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as crash:
        if os.environ.get("SEQUESTER_TRACEBACK"):
            raise
        click.echo(str(_crashed(crash)), err=True)
        sys.exit(1)


_STORAGE = {
    errno.ENOSPC: ("there is no space left on the disk", "make room"),
    errno.EDQUOT: ("your quota on the disk is used up", "make room"),
    errno.EROFS: ("the folder lies on a disk that is read-only", "choose another folder"),
    errno.EACCES: ("this user may not write or read in the folder", "change its permissions"),
    errno.EPERM: ("this user may not write or read in the folder", "change its permissions"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("too many files are open on this machine", "close some"),
    errno.ENOENT: ("a file or folder is gone that was there before", "put it back"),
}
"""What the system says of disks and files, whose names are ours or the user's own."""


def _folder(crash: OSError) -> str | None:
    """The folder that sequester was writing in; others may be named after a person."""
    for note in getattr(crash, "__notes__", ()):
        if note.startswith(WRITING):
            return str(note.removeprefix(WRITING))
    made = traceback.extract_tb(crash.__traceback__)[-1].name == "mkdir"
    return str(Path(crash.filename).parent) if made and crash.filename else None


def _crashed(crash: Exception) -> SequesterError:
    """A fault of ours, without its message: a library's error may quote a person's record."""
    if isinstance(crash, OSError) and crash.errno in _STORAGE:
        what, remedy = _STORAGE[crash.errno]
        return SequesterError(
            903,
            f"{what}; {remedy} and run the command again, a run that has begun with --resume",
            where=_folder(crash),
        )
    last = traceback.extract_tb(crash.__traceback__)[-1]
    return SequesterError(
        902,
        f"sequester failed with a {type(crash).__name__}; its message is withheld because it may "
        "quote a person's record. Set SEQUESTER_TRACEBACK=1 to see it where that may be read, "
        "and report the fault without it",
        where=f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno}",
    )
