"""The store of G12 to G16: versions made by the kit, sources with faults, and a run that joins channels."""
