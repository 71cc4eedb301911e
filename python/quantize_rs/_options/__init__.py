"""Options: checks the options of a caller, and converts them for the extension module.

Parameters, an options object and keywords come in. `resolve` gives each option of the table one
value by its canonical name. The dicts of `option_dict` go out, with the exact types that the
extension module takes; any other value raises an `OptionError` that names the option. `rows` and
`aliases` are generated from docs/options.json by `tools/generate_options.py`. This package
may import `errors`.
"""
