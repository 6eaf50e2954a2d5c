"""What the viewer answers: one module for each page, from an open run to JSON. No HTTP in here."""
