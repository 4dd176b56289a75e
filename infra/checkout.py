"""The checkout whose code runs here, and is pushed to pods."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
