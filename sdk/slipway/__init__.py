"""The module that a job of your own can import on any pod of Slipway: `from slipway import checkpoint`."""
