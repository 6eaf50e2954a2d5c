"""Tasks of the library reasoning-gym, and its scorers, which run in the verifier processes.

Plugs into a run as its domain (`domain=reasoning_gym`, `domain=thinking_sums`), and makes word problems for
`domain=math`.
"""

import warnings

# Of cellpylib, which reasoning-gym imports: they would be the first lines that a user sees.
warnings.filterwarnings("ignore", '"is" with a literal', SyntaxWarning)
