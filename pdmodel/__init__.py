"""pdmodel: how KV-cache transfers live together with tensor-, context- and expert-parallel traffic."""

__version__ = "0.1.0"
