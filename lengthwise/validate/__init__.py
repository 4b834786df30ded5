"""Predicted against measured: sources of measured runs, their simulation, and what differs."""
