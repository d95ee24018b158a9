"""`hoplite bench fabric`: which links are the fastest between machines of a list, beside what their network can do."""
