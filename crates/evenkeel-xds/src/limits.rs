//! Limits on the data accepted from a control plane.

/// Limits on the data accepted from a control plane. Data above a limit is rejected with an error that states the
/// limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdsLimits {
    /// Maximum size of one response in bytes.
    pub response_bytes: usize,
    /// Maximum number of resources in one response.
    pub resources: usize,
    /// Maximum number of endpoints of one cluster, all localities together.
    pub endpoints: usize,
    /// Maximum number of routes of one route configuration, all virtual hosts together.
    pub routes: usize,
    /// Maximum length in bytes of the name of a resource, a cluster or a header.
    pub name_bytes: usize,
    /// Maximum size in bytes of one compiled regular expression.
    pub regex_bytes: usize,
    /// Maximum length in bytes of the error text of a NACK.
    pub error_bytes: usize,
}

impl Default for XdsLimits {
    fn default() -> XdsLimits {
        XdsLimits {
            response_bytes: 64 << 20,
            resources: 100_000,
            endpoints: 1_000_000,
            routes: 100_000,
            name_bytes: 4 << 10,
            regex_bytes: 10 << 20,
            error_bytes: 4 << 10,
        }
    }
}
