"""Length-aware scheduling for LLM inference: one policy, simulated and measured side by side."""
