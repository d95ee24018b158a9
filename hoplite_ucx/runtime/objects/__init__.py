"""What an object is: Python values as bytes and back (`values`), what bytes mean (`layouts`), how they are combined."""
