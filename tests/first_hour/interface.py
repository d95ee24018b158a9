"""The public interface: names, errors and clients."""
