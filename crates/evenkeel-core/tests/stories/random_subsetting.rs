//! random_subsetting
