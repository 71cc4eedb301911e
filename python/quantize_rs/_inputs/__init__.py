"""Inputs: models, samples and engines.

Paths, arrays, iterables, images and engine objects come in. Models, sample sources and runs of the
extension module go out; `files` checks and writes output paths. This package may import
`_core`, `errors` and `_options`.
"""
