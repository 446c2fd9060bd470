"""What all tests share."""

from hypothesis import settings

# A busy machine is no defect: property tests judge answers, never how long they took.
settings.register_profile("decentnode", deadline=None)
settings.load_profile("decentnode")
