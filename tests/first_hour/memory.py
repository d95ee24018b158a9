"""The memory of drafts and arrays, and when it is free again."""
