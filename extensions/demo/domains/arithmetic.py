"""Evaluates a model's arithmetic expressions of + - * / and parentheses, without executing code."""

import ast
import math
import operator

LONGEST = 200  # characters; without powers, numbers do not grow much longer
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def calculate(expression: str) -> str:
    """Returns the value, exact for integers without division. Raises ValueError with a text for the model."""
    if len(expression) > LONGEST:
        raise ValueError(f"the expression is longer than {LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, UnicodeError, RecursionError, MemoryError) as error:
        raise ValueError("this is no arithmetic expression") from error
    except ZeroDivisionError as error:
        raise ValueError("division by zero") from error
    except OverflowError as error:
        raise ValueError("the result is too large") from error
    if not math.isfinite(value):
        raise ValueError("the result is too large")
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return value
        case ast.BinOp(left, op, right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op, operand) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_value(operand))
    raise ValueError("only numbers, + - * / and parentheses are allowed")
