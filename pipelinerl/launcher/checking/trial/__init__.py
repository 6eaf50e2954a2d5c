"""The trial of the user's parts: each is called once before the start, on what is made up for it.

A part that ships is not tried. `attempt` begins the trial; `calls` knows what each kind of part must give.
"""
