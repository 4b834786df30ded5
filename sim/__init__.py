"""Time, predicted: cost models, hardware figures, and the loop under SimPy."""
