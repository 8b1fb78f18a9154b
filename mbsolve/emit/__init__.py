"""Writers of launcher formats: the only place that knows a launcher's flag names."""
