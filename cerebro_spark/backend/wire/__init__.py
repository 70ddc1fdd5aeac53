"""The wire between the driver and its workers: authenticated frames, and the typed messages in them."""
