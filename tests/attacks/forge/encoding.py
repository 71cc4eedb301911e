"""Bytes that are no protobuf, or no ONNX."""

from __future__ import annotations

from build import wire

from .registry import attack, encoded, honest

MALFORMED = "not a well-formed ONNX model"
MODEL_IR, MODEL_GRAPH, MODEL_OPSET = 1, 7, 8
GRAPH_NODE, GRAPH_NAME, GRAPH_INPUT, GRAPH_OUTPUT = 1, 2, 11, 12
NODE_ATTRIBUTE = 5


@attack("ModelFormatError", "truncated")
def truncated_half() -> bytes:
    """The first half of a model."""
    data = encoded(honest())
    return data[: len(data) // 2]


@attack("ModelFormatError", "truncated")
def truncated_one_byte() -> bytes:
    """A model without its last byte."""
    return encoded(honest())[:-1]


@attack("ModelFormatError", "empty")
def empty_file() -> bytes:
    """No bytes, which protobuf takes for a message with nothing in it."""
    return b""


@attack("ModelFormatError", MALFORMED)
def garbage_text() -> bytes:
    """A text file."""
    return b"This is not a model, but a letter about one.\n" * 20


@attack("ModelFormatError", "not an ONNX model, but a PNG image")
def png_header() -> bytes:
    """The header of a PNG file."""
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\0\0\0\0"


@attack("ModelFormatError", MALFORMED)
def gzipped() -> bytes:
    """A compressed model."""
    return b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + bytes(range(200))


@attack("ModelFormatError", MALFORMED)
def zeros() -> bytes:
    """Nothing but zero bytes, as a download that failed leaves them."""
    return bytes(4096)


@attack("ModelFormatError", MALFORMED)
def all_ff() -> bytes:
    """Nothing but 0xff: a varint that never ends."""
    return b"\xff" * 4096


@attack("ModelFormatError", MALFORMED)
def garbage_tail() -> bytes:
    """A good model and something behind it."""
    return encoded(honest()) + b"\x07garbage"


@attack("ModelFormatError", "truncated")
def lying_length() -> bytes:
    """The graph's name says it is longer than the graph, and the file goes on behind it."""
    name = wire.tag(GRAPH_NAME, wire.LEN) + wire.varint(1000) + b"short"
    return _header() + wire.message(MODEL_GRAPH, name) + encoded(honest())


@attack("ModelFormatError", MALFORMED)
def huge_length() -> bytes:
    """A length of 2^64 - 1 bytes."""
    return _header() + wire.tag(MODEL_GRAPH, wire.LEN) + wire.varint(2**64 - 1) + b"graph"


@attack("ModelFormatError", MALFORMED)
def overlong_varint() -> bytes:
    """The IR version in eleven bytes, one more than any integer may take."""
    long_ir = wire.tag(MODEL_IR, wire.VARINT) + b"\x88" + b"\x80" * 9 + b"\0"
    return long_ir + encoded(honest())


@attack("ModelError")
def wrong_wire_type() -> bytes:
    """The graph is an integer: malformed, or (as protobuf sees it) a model without a graph."""
    return _header() + wire.integer(MODEL_GRAPH, 42)


@attack("ModelFormatError", MALFORMED)
def field_number_zero() -> bytes:
    """A field with the number 0, which protobuf reserves."""
    return encoded(honest()) + wire.message(0, "reserved")


@attack("ModelFormatError", "UTF-8")
def name_not_utf8() -> bytes:
    """The name of an operator is not text."""
    data = encoded(honest())
    return data.replace(b"\x22\x04Relu", b"\x22\x04Re\xff\xfe")


# --- nesting ---


@attack("ModelFormatError", "nested")
def deep_nesting() -> bytes:
    """If in If in If, 5000 levels: a recursive reader without a limit overflows the stack."""
    graph = b""
    for _ in range(5000):
        graph = wire.message(GRAPH_NODE, wire.message(4, "If"), _branch("then_branch", graph))
    return _model(graph)


@attack("ModelFormatError", "nested")
def deep_nesting_100() -> bytes:
    """100 levels, more than protobuf itself would read (100 messages, three for each graph)."""
    return _model(_honest_graph() + _nested(100))


@attack(None)
def deep_nesting_30() -> bytes:
    """30 levels, which protobuf and ONNX Runtime do read."""
    return _model(_honest_graph() + _nested(30))


@attack("ModelFormatError", may_work=True)
def deep_nesting_types() -> bytes:
    """A sequence of sequences of sequences …, 10 000 levels, as the type of a value."""
    value_type, sequence_type, graph_value_info = 2, 4, 13
    inner = wire.message(1, wire.integer(1, 1))
    for _ in range(10_000):
        inner = wire.message(sequence_type, wire.message(1, inner))
    strange = wire.message(graph_value_info, wire.message(1, "h"), wire.message(value_type, inner))
    return _model(_honest_graph() + strange)


@attack("ModelFormatError", MALFORMED)
def deep_nesting_groups() -> bytes:
    """50 000 groups opened inside each other, in an unknown field."""
    return encoded(honest()) + wire.tag(1000, wire.GROUP) * 50_000


def _header() -> bytes:
    return wire.integer(MODEL_IR, 8) + wire.message(MODEL_OPSET, wire.integer(2, 17))


def _model(graph: bytes) -> bytes:
    return _header() + wire.message(MODEL_GRAPH, graph)


def _honest_graph() -> bytes:
    return encoded(honest().graph)


def _nested(levels: int) -> bytes:
    """Further fields of a graph: an input `c` and an If on it, nested in its first branch."""
    graph = _graph(_node("Identity", f"y{levels}"), f"y{levels}")
    for level in range(levels - 1, -1, -1):
        other = _graph(_node("Identity", f"e{level}"), f"e{level}")
        branches = _branch("then_branch", graph) + _branch("else_branch", other)
        graph = _graph(_node("If", f"y{level}", branches), f"y{level}")
    scalar_of_bool = wire.message(2, wire.message(1, wire.integer(1, 9), wire.message(2)))
    condition = wire.message(GRAPH_INPUT, wire.message(1, "c"), scalar_of_bool)
    return condition + wire.message(GRAPH_NODE, _node("If", "nested", branches))


def _graph(node: bytes, output: str) -> bytes:
    made = wire.message(GRAPH_OUTPUT, wire.message(1, output))
    return wire.message(GRAPH_NODE, node) + wire.message(GRAPH_NAME, output) + made


def _node(op_type: str, output: str, attributes: bytes = b"") -> bytes:
    named = wire.message(1, "c") + wire.message(2, output) + wire.message(4, op_type)
    return named + attributes


def _branch(name: str, graph: bytes) -> bytes:
    kind_graph = wire.integer(20, 5)
    return wire.message(NODE_ATTRIBUTE, wire.message(1, name), wire.message(6, graph), kind_graph)
