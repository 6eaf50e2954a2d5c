"""Where the project's own files are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of launch.py, conf/ and the engines' environments
