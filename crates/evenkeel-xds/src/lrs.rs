//! Load reports to control planes (LRS).
