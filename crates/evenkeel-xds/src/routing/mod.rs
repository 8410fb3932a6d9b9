//! Which cluster a call goes to, and how.
