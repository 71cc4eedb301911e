"""Options: what a caller passes, checked, as the extension module takes it.

Python values come in: numbers, names, dicts by name. Values of the exact type that the extension
module takes go out; any other value raises an `OptionError` that names the option. This room may
import `errors`.
"""
