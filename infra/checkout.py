"""Root folder of the running checkout, which is also pushed to pods."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
