"""The wire between the driver and its workers: frames over TLS, and the typed messages in them."""
