"""Is what the interpreter runs of the archive that this directory becomes."""

from avgpiped_stub.main import main

if __name__ == "__main__":
    main()
