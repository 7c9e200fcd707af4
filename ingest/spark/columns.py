"""A condition written with Spark's columns, as an expression of ours.

Spark's columns are trees like ours, of which most have a counterpart: comparisons, `&`, `|`, `+ - *`, `abs`, `between`,
`cast`, constants. Whose a column is says the frame that it was taken from (`left_df.x`), or its name
(`F.col("l.x")`). A text of SQL (`F.expr`) is read as ours is.
"""

__all__ = ["expression_of"]

import datetime
from typing import Any

from ...errors import PredicateError
from ...operators.expressions import Expression, left, lit, right
from ...operators.predicate_text import predicate_of

_SIDES = {"l": left, "left": left, "r": right, "right": right}
_TWO = {"+": "__add__", "-": "__sub__", "*": "__mul__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__",
        "=": "__eq__", "and": "__and__", "or": "__or__"}  # fmt: skip
_TYPES = {
    "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64", "float": "float32", "double": "float64",
}  # fmt: skip


def expression_of(column: Any, left_frame: Any, right_frame: Any) -> Expression:
    """Translate a condition on columns of these two frames."""
    owners: dict[int, list[tuple[str, str]]] = {}
    for side, frame in (("left", left_frame), ("right", right_frame)):
        output = frame._jdf.queryExecution().analyzed().output()
        for i in range(output.size()):
            attribute = output.apply(i)
            owners.setdefault(attribute.exprId().id(), []).append((side, attribute.name()))
    from py4j.protocol import Py4JError

    try:
        return _translated(column._jc.node(), str(column), owners)
    except Py4JError:
        raise PredicateError(
            f"on={column}: a part of it has no counterpart; let Spark compute it before, and compare that"
        ) from None


def _translated(node: Any, where: str, owners: dict[int, list[tuple[str, str]]]) -> Expression:
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedFunction":
        return _function(node, where, owners)
    if kind == "UnresolvedAttribute":
        parts = [node.nameParts().apply(i) for i in range(node.nameParts().size())]
        if len(parts) != 2 or parts[0].lower() not in _SIDES:
            raise PredicateError(f"on={where}: whose is {'.'.join(parts)!r}? Say l.name or r.name, or left_df.name")
        return _SIDES[parts[0].lower()][parts[1]]
    if kind == "ExpressionColumnNode":
        attribute = node.expression()
        found = owners.get(attribute.exprId().id(), []) if hasattr(attribute, "exprId") else []
        if len(found) != 1:
            why = "neither frame has it" if not found else "both frames have it: they come from the same one"
            raise PredicateError(f"on={where}: whose is {attribute.name()!r}? {why}; say F.col('l.…') or F.col('r.…')")
        return _SIDES[found[0][0]][found[0][1]]
    if kind == "Literal":
        return lit(_constant(node.value()))
    if kind == "Cast":
        name = node.dataType().simpleString()
        return _translated(node.child(), where, owners).cast(_TYPES.get(name, name))
    if kind == "SqlExpression":
        return predicate_of(node.expression())
    raise PredicateError(
        f"on={where}: {kind} has no counterpart; let Spark compute it before, with .withColumn(…), and compare that"
    )


def _constant(value: Any) -> Any:
    """Return a constant as Python has it."""
    kind = value.getClass().getName() if hasattr(value, "getClass") else ""
    if kind == "java.sql.Date":
        return datetime.date.fromisoformat(value.toString())
    if kind == "java.sql.Timestamp":
        return datetime.datetime.fromisoformat(value.toInstant().toString())
    return value


def _function(node: Any, where: str, owners: dict[int, list[tuple[str, str]]]) -> Expression:
    name, given = node.functionName(), node.arguments()
    args = [_translated(given.apply(i), where, owners) for i in range(given.size()) if name != "!"]
    if name in _TWO and len(args) == 2:
        return getattr(args[0], _TWO[name])(args[1])
    if name == "abs":
        return args[0].abs()
    if name in ("negative", "-"):
        return -args[0]
    if name == "!":  # Spark's `!=`, and its `not`, of which there is none
        inner = given.apply(0)
        if inner.getClass().getSimpleName() == "UnresolvedFunction" and inner.functionName() == "=":
            one, two = (_translated(inner.arguments().apply(i), where, owners) for i in range(2))
            return one != two
        raise PredicateError(f"on={where}: there is no NOT; write the opposite comparison")
    raise PredicateError(f"on={where}: {name}(…) has no counterpart; compare columns that Spark has computed before")
