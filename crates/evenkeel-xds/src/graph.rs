//! From a listener to one complete config (A74).
