"""The command is in `command.py`. Each process of a trial imports this module too, so it imports nothing."""

if __name__ == "__main__":
    from benchmarks.mutants.command import main

    main()
