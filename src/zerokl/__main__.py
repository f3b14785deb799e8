"""`python -m zerokl`, for those who start Python themselves, as torchrun does."""

from zerokl.cli import main

if __name__ == "__main__":
    main()
