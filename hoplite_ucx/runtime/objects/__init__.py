"""Python values as bytes and back (`values`), the meaning of the bytes (`layouts`), and how they are combined
(`kernels`)."""
