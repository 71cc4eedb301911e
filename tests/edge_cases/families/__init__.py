"""The rows, a file for each kind of edge case."""

from . import (  # noqa: F401
    convolutions,
    domains,
    graphs,
    masks,
    names,
    numbers,
    opsets,
    products,
    recurrent,
    scopes,
    sources,
    storage,
)
