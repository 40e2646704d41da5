import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # toy_study.py, also run as a script in processes of its own
