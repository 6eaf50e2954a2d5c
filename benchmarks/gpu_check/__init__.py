"""`make gpu-check` (docs/gpu.md): checks what needs a GPU, part by part, and writes a table of it."""
