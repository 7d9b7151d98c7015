"""``pdmodel import``: what one file of a tool says."""

from __future__ import annotations

import typer

from pdmodel.cli import import_box, import_hf, import_topo, import_trace

app = typer.Typer(no_args_is_help=True, help="Show what one file says: what was taken from it, what is missing.")
app.command("topo", epilog=import_topo.EPILOG)(import_topo.topo)
app.command("hf-config", epilog=import_hf.EPILOG)(import_hf.hf_config)
app.command("trace", epilog=import_trace.EPILOG)(import_trace.trace)
app.command("nccl-xml", epilog=import_box.XML_EPILOG)(import_box.nccl_xml)
app.command("lspci", epilog=import_box.LSPCI_EPILOG)(import_box.lspci)
app.command("p2p", epilog=import_box.P2P_EPILOG)(import_box.p2p)
app.command("perftest", epilog=import_box.PERFTEST_EPILOG)(import_box.perftest)
app.command("nccl-tests", epilog=import_box.LOG_EPILOG)(import_box.nccl_tests)
