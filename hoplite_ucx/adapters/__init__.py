"""What the adapters for Ray and Dask share: their system knows that an object was put, and how long it lives."""
