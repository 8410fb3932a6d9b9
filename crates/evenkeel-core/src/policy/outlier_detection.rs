//! outlier_detection
