import sys
from pathlib import Path

# toy_study.py, also run as a script in processes of its own, and what the tests of training share
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "training")]
