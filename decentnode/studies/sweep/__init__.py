"""`decentnode sweep`: runs what is missing of a study."""
