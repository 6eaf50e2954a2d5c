"""Restricts answers that a library would evaluate as Python to literals and arithmetic formulas.

reasoning-gym's scorers call `eval` and sympy's `parse_expr` on answers. `secure` replaces these names in
their modules, so that an answer cannot execute code.
"""

import ast
import importlib
import io
import keyword
import tokenize
from typing import Any

import sympy
from sympy.parsing import sympy_parser

EVALUATE = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
PARSE = ("games.countdown", "games.puzzle24")
SYMPY = {
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
    "algebra.simple_integration": "sympy",
}
OPERATORS = {"+", "-", "*", "/", "**", "^", "(", ")", ","}
ELEMENTARY = """sqrt exp log ln sin cos tan sec csc cot asin acos atan asec acsc acot sinh cosh tanh asinh
acosh atanh sech csch coth erf erfi Si Ci Ei li gamma Abs Integral Rational Integer Float"""
FUNCTIONS = frozenset(ELEMENTARY.split())
CONSTANTS = ("E", "I", "pi", "oo")
OPENS_AFTER = (OPERATORS - {")"}) | {""}  # tokens before a parenthesis that is not a call
SILENT = (tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER)


class NoFormulaError(ValueError):
    """The text is not an arithmetic formula."""


class Sympy:
    """A substitute for the module sympy with this file's parser."""

    def __getattr__(self, name: str) -> Any:
        return formula if name == "parse_expr" else getattr(sympy, name)


def secure() -> None:
    """Replaces the evaluating functions in the library's modules by safe ones."""
    for name in EVALUATE:
        vars(_module(name))["eval"] = ast.literal_eval
    for name in PARSE:
        vars(_module(name))["parse_expr"] = formula
    for name, alias in SYMPY.items():
        vars(_module(name))[alias] = Sympy()


def formula(text: str, local_dict: dict[str, Any] | None = None) -> Any:
    """Returns the result of sympy's `parse_expr`. Raises NoFormulaError if the text is not arithmetic.

    Numbers, names, operators, and calls of elementary functions are allowed. Any other name is a symbol, even
    that of a Python builtin such as `eval`, which sympy would resolve to the function.
    """
    _check_formula(text)
    return sympy_parser.parse_expr(text, local_dict, global_dict=_known_names())


def _known_names() -> dict[str, Any]:
    """Returns the names that a formula may use, and those that the parser inserts."""
    known = {name: getattr(sympy, name) for name in (*FUNCTIONS, *CONSTANTS, "Symbol", "Function")}
    return {"__builtins__": {}, **known}


def _check_formula(text: str) -> None:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text.strip()).readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise NoFormulaError("this cannot be read") from error
    before = ""
    for token in tokens:
        if token.type in SILENT:
            continue
        if token.type == tokenize.OP and token.string in OPERATORS:
            if token.string == "(" and before not in FUNCTIONS | OPENS_AFTER:
                raise NoFormulaError(f"{before} is no elementary function")
        elif token.type == tokenize.NAME and "__" not in token.string:
            if keyword.iskeyword(token.string):
                raise NoFormulaError(f"{token.string} is a word of Python's")
        elif token.type != tokenize.NUMBER:
            raise NoFormulaError(f"{token.string!r} is no arithmetic")
        before = token.string


def _module(name: str) -> Any:
    return importlib.import_module(f"reasoning_gym.{name}")
