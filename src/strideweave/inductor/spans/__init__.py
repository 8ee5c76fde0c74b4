"""The parts of span-overflow hint analysis; `span_overflow_hint_analysis` puts them together."""
