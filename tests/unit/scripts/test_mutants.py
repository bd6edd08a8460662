"""The table of mutants must keep up with the code, or the mutation run shows nothing."""

from mutants import MUTANTS, misfits


def test_every_mutant_still_fits_the_code() -> None:
    """Whoever edits a rule of the policy edits its mutant too."""
    assert misfits(MUTANTS) == []
