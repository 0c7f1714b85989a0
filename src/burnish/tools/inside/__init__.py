"""What runs in the sandboxed process: the standard library alone, imported as the package `inside`.

The process starts without site-packages and without burnish, so modules here import each other
relatively and nothing else of ours. `entry.py` is the door.
"""
