//! Names of resources, and how targets lead to them (A47).
