"""Who runs next: groupings, layouts and lifecycles, and the named policies they make."""
