"""G12 to G16 of the conformance kit: a store of good and bad versions, faulty sources, a trainer peer."""
