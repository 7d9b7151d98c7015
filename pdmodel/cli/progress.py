"""A sign of life on stderr for work that takes longer than a second, on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pdmodel.cli.options import state

DELAY_S, BAR_DELAY_S, REFRESH_S = 1.0, 0.5, 0.1


class _Words:
    """What is being done, told by one thread and shown by another."""

    def __init__(self, title: str) -> None:
        self.title, self.now = title, ""
        self.done = threading.Event()

    def __str__(self) -> str:
        return f"{self.title}: {self.now}" if self.now else self.title


class _Share:
    """How much of a known whole is done, told by one thread and shown by another."""

    def __init__(self, title: str) -> None:
        self.title, self.so_far, self.total = title, 0, 0
        self.done = threading.Event()


_Told = TypeVar("_Told", _Words, _Share)


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar from the first half second on, until the block ends, which is given a function of (done, in all)."""
    share = _Share(title)

    def tell(so_far: int, total: int) -> None:
        share.so_far, share.total = so_far, total

    with _shown(_fill, share):
        yield tell


@contextmanager
def busy(title: str) -> Iterator[Callable[[str], None]]:
    """Show ``title``, what is being done and the seconds passed, from the first second on, until the block ends.

    The block is given a function that takes what is being done.
    """
    words = _Words(title)

    def tell(now: str) -> None:
        words.now = now

    with _shown(_spin, words):
        yield tell


@contextmanager
def _shown(draw: Callable[[_Told], None], what: _Told) -> Iterator[None]:
    """Let ``draw`` show ``what`` beside the block, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    thread = threading.Thread(target=draw, args=(what,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        what.done.set()
        thread.join()


def _spin(words: _Words) -> None:
    if words.done.wait(DELAY_S):
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=not state.colour)
    columns = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(str(words), total=None)
        while not words.done.wait(REFRESH_S):
            progress.update(task, description=str(words))


def _fill(share: _Share) -> None:
    if share.done.wait(BAR_DELAY_S):
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=not state.colour)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(share.title, total=share.total or None)
        while not share.done.wait(REFRESH_S):
            progress.update(task, completed=share.so_far, total=share.total or None)
