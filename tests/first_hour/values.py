"""What a value is after its journey."""
