"""`python -m burnish`, the same as `burnish`."""

from burnish.cli import main

if __name__ == "__main__":
    main()
