"""``pdmodel import``: what one file of a tool says."""

from __future__ import annotations

import typer

from pdmodel.cli import import_topo, import_trace

app = typer.Typer(no_args_is_help=True, help="Show what one file says: what was taken from it, what is missing.")
app.command("topo", epilog=import_topo.EPILOG)(import_topo.topo)
app.command("trace", epilog=import_trace.EPILOG)(import_trace.trace)
