"""Results: frozen classes, each built from an object of the extension module.

Objects of `_core` come in. Objects with attributes, ``to_dict``, ``to_json``, a notebook table,
plots and an HTML report go out; `quantize_rs.results` lists them. This package may import
`_core`, `errors`, `_options` and `_inputs`.
"""
