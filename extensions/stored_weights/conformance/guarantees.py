"""Registers this package's guarantees with the kit, as an entry point in `pyproject.toml`."""

from contracts.conformance.inference.registered import Registered
from contracts.conformance.verdicts import Guarantee
from extensions.stored_weights.conformance import (
    g08_channels,
    g12_store,
    g13_skipping,
    g14_integrity,
    g15_resume,
    g16_undisturbed,
)

REGISTERED = Registered(
    capabilities=("relay", "shared"),
    guarantees={
        Guarantee("G12", "store content"): g12_store.PARTS,
        Guarantee("G13", "skipping"): g13_skipping.PARTS,
        Guarantee("G14", "integrity"): g14_integrity.PARTS,
        Guarantee("G15", "resume"): g15_resume.PARTS,
        Guarantee("G16", "undisturbed"): g16_undisturbed.PARTS,
    },
    parts={("G8", "groups"): {"channels": g08_channels.channels}},
)
