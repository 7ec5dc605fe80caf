"""Builds the C++ extension where there is a compiler. SEQ2SEQ_FAST_BUILD=auto|none|cpu|cuda chooses what is built."""
