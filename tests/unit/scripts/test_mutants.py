"""The table of mutants must match the code; otherwise the mutation run shows nothing."""

from mutants import MUTANTS, misfits


def test_every_mutant_still_fits_the_code() -> None:
    """A change of a rule of the policy must change its mutant too."""
    assert misfits(MUTANTS) == []
