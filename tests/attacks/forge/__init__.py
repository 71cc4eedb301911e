"""The attacks, by what they abuse. Importing a module registers its files."""

from . import encoding, graphs, outside, samples, tensors
from .registry import ATTACKS, Attack

__all__ = ["ATTACKS", "Attack", "encoding", "graphs", "outside", "samples", "tensors"]
