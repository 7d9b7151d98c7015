"""A sign of life on stderr for work that takes longer than a second, on a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdmodel.cli.options import state

DELAY_S, REFRESH_S = 1.0, 0.1


class _Words:
    """What is being done, told by one thread and shown by another."""

    def __init__(self, title: str) -> None:
        self.title, self.now = title, ""
        self.done = threading.Event()

    def __str__(self) -> str:
        return f"{self.title}: {self.now}" if self.now else self.title


@contextmanager
def busy(title: str) -> Iterator[Callable[[str], None]]:
    """Show ``title``, what is being done and the seconds passed, from the first second on, until the block ends.

    The block is given a function that takes what is being done.
    """
    words = _Words(title)

    def tell(now: str) -> None:
        words.now = now

    if not sys.stderr.isatty():
        yield tell
        return
    thread = threading.Thread(target=_spin, args=(words,), daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        words.done.set()
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
